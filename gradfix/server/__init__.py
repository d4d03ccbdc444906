"""The language server: findings, fixes and rule documentation inside an editor."""
