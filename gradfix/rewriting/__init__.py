"""What codemods ask of a tree, done with LibCST: insert, wrap, replace, move, rename.

Rules hand over declarative edits (`gradfix.findings`); this package finds their nodes by position, applies all of
them in one pass that builds on the updated nodes, so that nested edits compose, and holds what must always hold:
the result compiles and no comment is lost.
"""

from __future__ import annotations

from gradfix.rewriting.apply import RewriteError, rewrite

__all__ = ["RewriteError", "rewrite"]
