"""Imports after a rewrite: renamed where the library renamed, removed where nothing uses them any more."""

from __future__ import annotations

import re
from collections.abc import Sequence

import libcst as cst

from gradfix.findings import RenameImport


def tidy(module: cst.Module, renamed: Sequence[RenameImport], dropped: Sequence[str]) -> cst.Module:
    if renamed:
        module = module.visit(_Rename(renamed))
    unused = {name for name in dropped if not _uses(module, name)}
    return _drop(module, unused) if unused else module


class _Rename(cst.CSTTransformer):
    def __init__(self, edits):
        super().__init__()
        self.edits = edits

    def leave_ImportFrom(self, original, updated):
        if updated.module is None or updated.relative or isinstance(updated.names, cst.ImportStar):
            return updated
        module = cst.Module([]).code_for_node(updated.module)
        names = {e.old: e.new for e in self.edits if e.module == module}
        there = {a.name.value for a in updated.names if a.asname is None}
        keep = []
        for alias in updated.names:
            new = names.get(alias.name.value)
            if new is None:
                keep.append(alias)
            elif alias.asname is not None or new not in there:
                keep.append(alias.with_changes(name=cst.Name(new)))
        return _with_names(updated, keep)


def _with_names(statement, keep):
    if len(keep) == len(statement.names):
        return statement.with_changes(names=keep)
    last, old_last = keep[-1], statement.names[-1]
    return statement.with_changes(names=[*keep[:-1], last.with_changes(comma=old_last.comma)])


class _Names(cst.CSTVisitor):
    """Does anything but an import at top level speak of the name?"""

    def __init__(self, name):
        super().__init__()
        self.name, self.found = name, False
        self.word = re.compile(rf"\b{re.escape(name)}\b")

    def visit_Import(self, node):
        return False

    visit_ImportFrom = visit_Import

    def visit_Attribute(self, node):
        node.value.visit(self)
        return False

    def visit_Arg(self, node):
        node.value.visit(self)
        return False

    def visit_Name(self, node):
        self.found |= node.value == self.name

    def visit_SimpleString(self, node):  # `__all__`, annotations in quotes
        self.found |= self.word.fullmatch(str(node.evaluated_value)) is not None


class _Annotations(_Names):
    def visit_Annotation(self, node):
        self.found |= self.word.search(cst.Module([]).code_for_node(node)) is not None


def _uses(module, name):
    visitor = _Annotations(name)
    module.visit(visitor)
    return visitor.found


def _bound(alias):
    if alias.asname is not None:
        return alias.asname.name.value
    node = alias.name
    while isinstance(node, cst.Attribute):
        node = node.value
    return node.value


def _drop(module, names):
    body, carried = [], ()
    for line in module.body:
        if isinstance(line, cst.SimpleStatementLine) and any(isinstance(s, (cst.Import, cst.ImportFrom)) for s in line.body):
            kept = [new for s in line.body if (new := _without(s, names)) is not None]
            if not kept:
                if line.trailing_whitespace.comment is None:
                    comments = any(x.comment for x in line.leading_lines)
                    carried = (*carried, *line.leading_lines) if comments or not body else carried or _blank_only(line)
                    continue
            else:
                kept[-1] = kept[-1].with_changes(semicolon=cst.MaybeSentinel.DEFAULT)
                line = line.with_changes(body=kept)
        if carried:
            line = line.with_changes(leading_lines=_merged(carried, line.leading_lines))
            carried = ()
        body.append(line)
    if carried:
        module = module.with_changes(footer=[*carried, *module.footer])
    return module.with_changes(body=body)


def _blank_only(line):
    return tuple(x for x in line.leading_lines if x.comment is None)


def _merged(carried, own):
    """Blank lines above a removed import count only where they are more than those below."""
    if any(x.comment for x in carried):
        return [*carried, *own]
    blank = next((i for i, x in enumerate(own) if x.comment is not None), len(own))
    return own if blank >= len(carried) else [*carried, *own[blank:]]


def _without(statement, names):
    """The import statement without the aliases that bind one of the names; None where nothing is left."""
    if not isinstance(statement, (cst.Import, cst.ImportFrom)) or isinstance(statement.names, cst.ImportStar):
        return statement
    if isinstance(statement, cst.ImportFrom) and statement.module is not None and getattr(statement.module, "value", "") == "__future__":
        return statement
    keep = [a for a in statement.names if _bound(a) not in names or isinstance(statement, cst.Import) and a.asname is None]
    if len(keep) == len(statement.names):
        return statement
    if not keep:
        return None
    if "#" in cst.Module([]).code_for_node(statement):
        return statement
    return _with_names(statement, keep)
