"""GradFix's own rules: one module, one rule.  A module's attribute `codemod` is the rule."""
