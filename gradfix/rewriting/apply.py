"""Apply groups of edits to one file."""

from __future__ import annotations

import ast
import collections
import dataclasses
import io
import re
import tokenize
from collections.abc import Iterable, Sequence
from functools import lru_cache

import libcst as cst

from gradfix.findings import (
    AddArgument, AddFilter, DropUnusedImport, Edit, EnsureImport, InsertAfter, InsertBefore, InsertInBody, Lift, Move, NameArguments,
    RemoveArgument, RenameAttribute, RenameImport, RenameKeyword, ReplaceExpression, ReplaceStatement, ReplaceToken, Span, Wrap,
)
from gradfix.old_python import PLACEHOLDER, with_async_renamed
from gradfix.rewriting import imports as import_edits
from gradfix.rewriting.locate import Locator

AWAIT_ANYWHERE = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT  # as the cells of a notebook may
STATEMENT_EDITS = (InsertBefore, InsertAfter, Wrap, Move, ReplaceStatement)


class RewriteError(Exception):
    """The edits can't be applied; the file stays as it was."""


def rewrite(source: bytes, groups: Sequence[Sequence[Edit]]) -> tuple[bytes, list[int]]:
    """Apply each group of edits, all of it or none.

    Returns the new content and the indexes of the groups that have to wait for another round because they touch what
    an accepted group changes. Raises RewriteError where a node is not found, the result does not compile or a comment
    would be lost.
    """
    accepted: list[Edit] = []
    deferred: list[int] = []
    tokens = any(isinstance(edit, ReplaceToken) for group in groups for edit in group)
    for index, group in enumerate(groups):
        if tokens and not any(isinstance(edit, ReplaceToken) for edit in group):
            deferred.append(index)  # the file has to parse first
            continue
        if any(conflict(edit, other) for edit in group for other in accepted):
            deferred.append(index)
        else:
            accepted.extend(e for e in group if e not in accepted)
    if not accepted:
        return source, deferred
    try:
        if tokens:
            result = replace_tokens(source, [e for e in accepted if isinstance(e, ReplaceToken)])
        else:
            result = _transform(*_parsed(source), accepted).bytes
    except RewriteError:
        raise
    except RecursionError:
        raise RewriteError("nested too deeply to be rewritten") from None
    except cst.ParserSyntaxError as error:
        again = _with_async_renamed(source, groups)
        if again is not None:
            return again
        raise RewriteError(f"LibCST can't parse it: {error.message}") from None
    except Exception as error:
        raise RewriteError(f"{type(error).__name__}: {error}") from error
    if source.startswith(b"\xef\xbb\xbf") and not result.startswith(b"\xef\xbb\xbf"):
        result = b"\xef\xbb\xbf" + result
    if source.endswith(b"\r") and not result.endswith(b"\r"):
        result += b"\r"  # LibCST knows no final newline of this kind
    try:
        compile(result, "<rewritten>", "exec", AWAIT_ANYWHERE, dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise RewriteError(f"the result would not compile: {error}") from None
    lost = _old_comments(source) - comments(result)
    if lost:
        raise RewriteError(f"a comment would be lost: {next(iter(lost))}")
    return result, deferred


# Reports rewrite a file once for each of its fixes, one after the other.  Trees are never changed, so they can be shared.
@lru_cache(maxsize=2)
def _parsed(source: bytes) -> tuple[cst.Module, Locator]:
    module = cst.parse_module(source)
    return module, Locator(module, source.decode(module.encoding).removeprefix("\ufeff"))


@lru_cache(maxsize=2)
def _old_comments(source: bytes) -> collections.Counter:
    return comments(source)


@lru_cache(maxsize=2)
def _async_renamed(source: bytes) -> bytes:
    encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    return with_async_renamed(source.decode(encoding)).encode(encoding)


def _with_async_renamed(source: bytes, groups) -> tuple[bytes, list[int]] | None:
    """The rewrite of a file that parses but for `.cuda(async=True)`, which is left as it is."""
    renamed = _async_renamed(source)
    if renamed == source:
        return None
    result, deferred = rewrite(renamed, groups)
    return result.replace(PLACEHOLDER.encode(), b"async"), deferred


def replace_tokens(source: bytes, edits: Sequence[ReplaceToken]) -> bytes:
    encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    lines = io.StringIO(source.decode(encoding), newline="").readlines()
    for edit in sorted(edits, key=lambda e: e.target, reverse=True):
        where = edit.target
        line = lines[where.row - 1]
        lines[where.row - 1] = line[: where.col] + edit.text + line[where.end_col :]
    return "".join(lines).encode(encoding)


def comments(data: bytes) -> collections.Counter:
    found: collections.Counter = collections.Counter()
    try:
        for token in tokenize.tokenize(io.BytesIO(data).readline):
            if token.type == tokenize.COMMENT:
                found[token.string.rstrip()] += 1
    except (tokenize.TokenError, SyntaxError, IndentationError):
        pass
    return found


def target_of(edit: Edit) -> Span | None:
    if isinstance(edit, Wrap):
        return Span(edit.first.row, edit.first.col, edit.last.end_row, edit.last.end_col)
    if isinstance(edit, (InsertBefore, InsertAfter)):
        return edit.anchor
    if isinstance(edit, InsertInBody):
        return edit.owner
    return getattr(edit, "target", None)


def overlap(a: Span, b: Span) -> bool:
    return (a.row, a.col) < (b.end_row, b.end_col) and (b.row, b.col) < (a.end_row, a.end_col)


def conflict(edit: Edit, other: Edit) -> bool:
    """May the two, of different fixes, not go in together?"""
    if edit == other:
        return False
    a, b = target_of(edit), target_of(other)
    if a is None or b is None:
        return False
    exclusive = (ReplaceStatement, Move)
    inserts = (InsertBefore, InsertAfter)
    if isinstance(edit, exclusive) and not isinstance(other, inserts) or isinstance(other, exclusive) and not isinstance(edit, inserts):
        mine = edit if isinstance(edit, exclusive) else other
        rest = other if mine is edit else edit
        if isinstance(rest, (Wrap, InsertInBody)):
            return overlap(a, b) and isinstance(mine, Move) or isinstance(rest, Wrap) and overlap(a, b)
        return overlap(a, b)
    if isinstance(edit, Move) or isinstance(other, Move):
        return overlap(a, b)
    if isinstance(edit, Wrap) and isinstance(other, Wrap):
        return overlap(a, b)
    if isinstance(edit, (ReplaceExpression, Lift)) and isinstance(other, (ReplaceExpression, Lift)):
        return a == b or any(isinstance(e, Lift) and overlap(e.target, o) and not e.inner.contains(o) and not o.contains(e.target)
                             for e, o in ((edit, b), (other, a)))
    if isinstance(edit, type(other)) and isinstance(edit, (AddFilter, RenameAttribute, NameArguments)):
        return a == b and edit != other
    return False


def _transform(module: cst.Module, locator: Locator, edits: list[Edit]) -> cst.Module:
    by_node: dict[cst.CSTNode, list[Edit]] = {}
    by_statement: dict[cst.CSTNode, list] = {}
    lifted: dict[Lift, cst.CSTNode] = {}
    imports, renamed, dropped = [], [], []
    for edit in (_with_newlines(edit, module.default_newline) for edit in edits):
        if isinstance(edit, EnsureImport):
            imports.append(edit.module)
        elif isinstance(edit, RenameImport):
            renamed.append(edit)
        elif isinstance(edit, DropUnusedImport):
            dropped.append(edit.name)
        elif isinstance(edit, STATEMENT_EDITS):
            spans = {"at": edit.first, "to": edit.last} if isinstance(edit, Wrap) else {"at": target_of(edit)}
            if isinstance(edit, Move):
                spans["to"] = edit.anchor
            nodes = {}
            for role, span in spans.items():
                node = locator.statement(span)
                if node is None:
                    raise RewriteError(f"no statement at row {span.row} for {type(edit).__name__}")
                nodes[role] = node
            by_statement.setdefault(nodes["at"], []).append((edit, nodes))
            if isinstance(edit, Move):
                by_statement.setdefault(nodes["to"], []).append((edit, nodes))
            if isinstance(edit, Wrap):
                by_statement.setdefault(nodes["to"], [])
        elif isinstance(edit, InsertInBody):
            node = locator.statement(edit.owner)
            if node is None:
                raise RewriteError(f"no statement at row {edit.owner.row} for InsertInBody")
            by_node.setdefault(node, []).append(edit)
        else:
            if isinstance(edit, Lift):
                inner = locator.expression(edit.inner)
                if inner is None:
                    raise RewriteError(f"no expression at row {edit.inner.row} for Lift")
                lifted[edit] = inner
            kind = {AddFilter: cst.BaseComp, AddArgument: cst.Call, RemoveArgument: cst.Call, RenameKeyword: cst.Call,
                    NameArguments: cst.Call, RenameAttribute: cst.Attribute}.get(type(edit), cst.BaseExpression)
            node = locator.expression(edit.target, kind)
            if node is None:
                raise RewriteError(f"no expression at row {edit.target.row} for {type(edit).__name__}")
            by_node.setdefault(node, []).append(edit)
    transformer = Apply(locator, by_node, by_statement, module, lifted)
    result = module.visit(transformer)
    for name in imports:
        result = ensure_import(result, name)
    return import_edits.tidy(result, renamed, dropped)


def _with_newlines(edit: Edit, newline: str) -> Edit:
    """New code holds lines of our own beside lines of the file: all of them end as the file's lines do."""
    code = getattr(edit, "code", None)
    return dataclasses.replace(edit, code=re.sub("\r?\n", newline, code)) if code and "\n" in code else edit


class Apply(cst.CSTTransformer):
    def __init__(self, locator, by_node, by_statement, module, lifted):
        super().__init__()
        self.locator, self.by_node, self.by_statement, self.module = locator, by_node, by_statement, module
        self.lifted, self.inner = lifted, dict.fromkeys(lifted.values())  # what `Lift` edits take out of larger expressions
        self.made: list = []  # the blocks that we made, with their headers
        self.moved: dict = {}
        self.gone: list = []  # what stands for statements that were removed and had comments
        self.on_the_way = self._with_parents([*by_node, *by_statement, *self.inner])

    def _with_parents(self, nodes: Iterable[cst.CSTNode]) -> set[cst.CSTNode]:
        found: set[cst.CSTNode] = set()
        for node in nodes:
            here: cst.CSTNode | None = node
            while here is not None and here not in found:
                found.add(here)
                here = self.locator.parents.get(here)
        return found

    def on_visit(self, node):
        """What holds nothing to change stays the node that it is."""
        return node in self.on_the_way

    def parse(self, code: str) -> list:
        parsed = cst.parse_module(code + self.module.default_newline, config=cst.PartialParserConfig(default_newline=self.module.default_newline,
                                                                                default_indent=self.module.default_indent))
        return list(parsed.body)

    def on_leave(self, original, updated):
        updated = super().on_leave(original, updated)
        for edit in self.by_node.get(original, ()):
            updated = self.apply(edit, original, updated)
        if original in self.inner:
            self.inner[original] = updated
        return updated

    # ------------------------------------------------------------ statements
    def leave_Module(self, original, updated):
        return updated.with_changes(body=self.body(original.body, updated.body))

    def leave_IndentedBlock(self, original, updated):
        return updated.with_changes(body=self.body(original.body, updated.body))

    def leave_If(self, original, updated):
        """An `else` all of whose statements went away goes, too."""
        clause = original.orelse
        if isinstance(clause, cst.Else) and isinstance(clause.body, cst.IndentedBlock) and isinstance(updated.orelse, cst.Else):
            gone = [e for s in clause.body.body if isinstance(s, cst.SimpleStatementLine) for x in s.body
                    for e, _ in self.by_statement.get(x, ()) if isinstance(e, ReplaceStatement) and not e.code]
            left = updated.orelse.body.body
            if gone and len(left) == 1 and isinstance(left[0], cst.SimpleStatementLine) and isinstance(left[0].body[0], cst.Pass) and not any(
                    has_comment(part) for part in (updated.orelse, clause)):
                return updated.with_changes(orelse=None)
        return updated

    def leave_SimpleStatementSuite(self, original, updated):
        if not any(s in self.by_statement for s in original.body):
            return updated
        block = as_block(updated)
        lines = self.split(original.body, block.body[0].body, (), block.body[-1].trailing_whitespace) if len(block.body) == 1 else list(
            zip(original.body, block.body))
        return block.with_changes(body=self.arrange([(o, s) for o, s in lines]))

    def body(self, original, updated):
        if not any(s in self.by_statement or isinstance(s, cst.SimpleStatementLine) and any(x in self.by_statement for x in s.body)
                   for s in original):
            return updated
        units = []
        for old, new in zip(original, updated):
            if isinstance(old, cst.SimpleStatementLine) and any(x in self.by_statement for x in old.body):
                units.extend(self.split(old.body, new.body, new.leading_lines, new.trailing_whitespace))
            else:
                units.append((old, new))
        return self.arrange(units)

    def split(self, old, new, leading, trailing):
        """`a; b` as lines of their own; the comment stays with the last."""
        out = []
        for i, (o, n) in enumerate(zip(old, new)):
            out.append((o, cst.SimpleStatementLine(
                body=[n.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)], leading_lines=leading if i == 0 else (),
                trailing_whitespace=trailing if i == len(old) - 1 else cst.TrailingWhitespace())))
        return out

    def arrange(self, units):
        units = self.move(units)
        out, i = [], 0
        keys = [key for key, _ in units]
        while i < len(units):
            key, statement = units[i]
            edits = self.by_statement.get(key, ())
            before = [e for e, _ in edits if isinstance(e, InsertBefore)]
            after = [e for e, _ in edits if isinstance(e, InsertAfter)]
            wraps = [(e, n) for e, n in edits if isinstance(e, Wrap)]
            last = i
            if wraps:
                wrap, nodes = wraps[0]
                if nodes["to"] not in keys[i:]:
                    raise RewriteError("the statements to wrap are not in one suite")
                last = keys.index(nodes["to"], i)
            inner = []
            for k, s in units[i : last + 1]:
                middle = self.by_statement.get(k, ())
                if k is not key:
                    inner.extend(x for e, _ in middle if isinstance(e, InsertBefore) for x in self.parse(e.code))
                inner.extend(self.replaced(k, s))
                if last > i and k is not keys[last]:
                    inner.extend(x for e, _ in middle if isinstance(e, InsertAfter) for x in self.parse(e.code))
            if wraps:
                after = [e for e, _ in self.by_statement.get(keys[last], ()) if isinstance(e, InsertAfter)]
                inner = [self.wrapped(wraps[0][0].header, inner)]
            new = [x for e in before for x in self.parse(e.code)]
            if new and inner:
                blank, rest = split_blank(inner[0].leading_lines)
                new[0] = new[0].with_changes(leading_lines=[*blank, *new[0].leading_lines])
                inner[0] = inner[0].with_changes(leading_lines=rest)
            out.extend(new)
            for statement in inner:
                self.append(out, statement)
            out.extend(x for e in after for x in self.parse(e.code))
            i = last + 1
        return self.hand_on_comments(out) or [cst.SimpleStatementLine([cst.Pass()])]

    def hand_on_comments(self, statements):
        """The comments of a statement that went away stand before the next one."""
        out, carried = [], []
        for i, statement in enumerate(statements):
            if any(statement is s for s in self.gone) and i + 1 < len(statements):
                carried += statement.leading_lines
                if statement.trailing_whitespace.comment is not None:
                    carried.append(cst.EmptyLine(comment=statement.trailing_whitespace.comment))
                continue
            if carried:
                statement = statement.with_changes(leading_lines=[*carried, *statement.leading_lines])
                carried = []
            out.append(statement)
        return out

    def append(self, out, statement):
        """Neighbouring blocks that we made with the same header are one block."""
        header = self.header_of(statement)
        if out and header is not None and self.header_of(out[-1]) == header and not statement.leading_lines:
            previous = out[-1]
            out[-1] = previous.with_changes(body=previous.body.with_changes(body=[*previous.body.body, *statement.body.body]))
            self.made.append((out[-1], header))
        else:
            out.append(statement)

    def wrapped(self, header, statements):
        shell = self.parse(header + "\n    pass")[0]
        blank, rest = split_blank(statements[0].leading_lines)
        statements = [statements[0].with_changes(leading_lines=rest), *statements[1:]]
        made = shell.with_changes(leading_lines=blank, body=shell.body.with_changes(body=statements))
        self.made.append((made, header))
        return made

    def header_of(self, statement):
        return next((header for made, header in self.made if made is statement), None)

    def replaced(self, key, statement):
        edit = next((e for e, _ in self.by_statement.get(key, ()) if isinstance(e, ReplaceStatement)), None)
        if edit is None:
            return [statement]
        if not edit.code:
            trailing = getattr(statement, "trailing_whitespace", None)  # a block has none
            commented = any(line.comment for line in statement.leading_lines) or trailing is not None and trailing.comment
            if not commented:
                return []
        new = self.parse(edit.code or "pass")
        new[0] = new[0].with_changes(leading_lines=statement.leading_lines)
        if not edit.code:
            self.gone.append(new[0].with_changes(trailing_whitespace=trailing) if trailing is not None else new[0])
            return self.gone[-1:]
        if isinstance(new[-1], cst.SimpleStatementLine) and isinstance(statement, cst.SimpleStatementLine):
            new[-1] = new[-1].with_changes(trailing_whitespace=statement.trailing_whitespace)
        elif isinstance(statement, cst.SimpleStatementLine) and statement.trailing_whitespace.comment:
            comment = cst.EmptyLine(comment=statement.trailing_whitespace.comment)  # a block has no place for it at its end
            new[0] = new[0].with_changes(leading_lines=[*new[0].leading_lines, comment])
        return new

    def move(self, units):
        for key, edits in self.by_statement.items():
            for edit, nodes in edits:
                if not isinstance(edit, Move) or nodes["at"] is not key:
                    continue
                here = next((u for u in units if u[0] is key), None)
                there = next((u for u in units if u[0] is nodes["to"]), None)
                if here is not None:
                    units = [u for u in units if u is not here]
                    if not units:
                        units = [(None, cst.SimpleStatementLine([cst.Pass()]))]
                    self.moved[key] = here[1]
                if there is not None:
                    at = next(i for i, u in enumerate(units) if u[0] is nodes["to"]) + (0 if edit.before else 1)
                    taken = here[1] if here is not None else self.moved_statement(key)
                    units = [*units[:at], (key, taken), *units[at:]]
        return units

    def moved_statement(self, key):
        """The statement that moves into an inner suite, which is left before the outer one."""
        if isinstance(key, cst.BaseSmallStatement):
            line = self.locator.parents[key]
            if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1:
                return only_comments(line)
            return cst.SimpleStatementLine([key.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)])
        return only_comments(key)

    # ----------------------------------------------------------- expressions
    def apply(self, edit, original, updated):
        if isinstance(edit, InsertInBody):
            body = updated.body
            if isinstance(body, cst.SimpleStatementSuite):
                body = as_block(body)
            statements = list(body.body)
            at = 1 if statements and is_docstring(statements[0]) and isinstance(updated, (cst.FunctionDef, cst.ClassDef)) else 0
            return updated.with_changes(body=body.with_changes(body=[*statements[:at], *self.parse(edit.code), *statements[at:]]))
        if isinstance(edit, ReplaceExpression):
            return self.replace(edit, original, updated)
        if isinstance(edit, Lift):
            result = self.replace(edit, original, self.inner[self.lifted[edit]])
            return result if result.lpar or on_its_own(result) else parenthesised(result)
        if isinstance(edit, NameArguments):
            return name_arguments(updated, edit.names)
        if isinstance(edit, RenameAttribute):
            return updated.with_changes(attr=cst.Name(edit.name))
        if isinstance(edit, RenameKeyword):
            return updated.with_changes(args=[a.with_changes(keyword=cst.Name(edit.name)) if a.keyword and a.keyword.value == edit.keyword else a
                                              for a in updated.args])
        if isinstance(edit, RemoveArgument):
            return remove_argument(updated, edit.keyword)
        if isinstance(edit, AddArgument):
            return add_argument(updated, edit.code)
        if isinstance(edit, AddFilter):
            return updated.with_changes(for_in=add_filter(updated.for_in, edit.code))
        raise RewriteError(f"unknown edit {type(edit).__name__}")

    def replace(self, edit, original, updated):
        try:
            template = cst.parse_expression(edit.code)
        except cst.ParserSyntaxError as error:
            raise RewriteError(f"{edit.code!r} is no expression: {error.message}") from None
        filler = _Fill(updated)
        result = updated if isinstance(template, cst.Name) and template.value == "__expr__" else template.visit(filler)
        if isinstance(result, LOOSE) and not result.lpar:
            parent = self.locator.parents.get(original)
            if original.lpar and (not filler.used or isinstance(edit, Lift)) or isinstance(parent, (*TIGHT, cst.Attribute, cst.Subscript, cst.Await)) or isinstance(
                    parent, cst.Call) and parent.func is original:
                result = parenthesised(result)
        return result


LOOSE = (cst.BinaryOperation, cst.BooleanOperation, cst.Comparison, cst.IfExp, cst.Lambda, cst.UnaryOperation, cst.NamedExpr, cst.Await, cst.Yield,
         cst.GeneratorExp)
TIGHT = (cst.BinaryOperation, cst.UnaryOperation, cst.Comparison, cst.BooleanOperation, cst.IfExp)


class _Fill(cst.CSTTransformer):
    def __init__(self, node):
        super().__init__()
        self.node, self.used, self.stack = node, False, []

    def on_visit(self, node):
        self.stack.append(node)
        return super().on_visit(node)

    def on_leave(self, original, updated):
        self.stack.pop()
        if isinstance(original, cst.Name) and original.value == "__expr__":
            self.used = True
            parent = self.stack[-1] if self.stack else None
            loose = isinstance(self.node, LOOSE)
            if isinstance(parent, cst.BooleanOperation):
                loose = isinstance(self.node, (cst.BooleanOperation, cst.IfExp, cst.Lambda, cst.NamedExpr, cst.Yield))
            elif isinstance(parent, cst.IfExp):
                loose = isinstance(self.node, (cst.IfExp, cst.Lambda, cst.NamedExpr, cst.Yield))
            elif parent is None or isinstance(parent, cst.Arg):
                loose = False
            number = isinstance(self.node, (cst.Integer,)) and isinstance(parent, cst.Attribute)
            return parenthesised(self.node) if (loose or number) and not self.node.lpar else self.node
        return super().on_leave(original, updated)


def parenthesised(node):
    return node.with_changes(lpar=[cst.LeftParen(), *node.lpar], rpar=[*node.rpar, cst.RightParen()])


def on_its_own(node):
    """Does the expression hold together without parentheses around it, in a statement of its own?"""
    code = cst.Module([]).code_for_node(node)
    if "\n" not in code and "\r" not in code:
        return True
    try:
        cst.parse_statement(f"_ = {code}\n")
    except cst.ParserSyntaxError:
        return False
    return True


def only_comments(statement):
    """The statement without the blank lines above it."""
    lines = [line.with_changes(indent=True) for line in statement.leading_lines if line.comment is not None]
    return statement.with_changes(leading_lines=lines)


def split_blank(lines):
    """(leading lines up to the last blank one, the comments behind them)."""
    lines = list(lines)
    at = max((i for i, line in enumerate(lines) if line.comment is None), default=-1) + 1
    return lines[:at], lines[at:]


def as_block(suite):
    """A one-line suite as an indented block."""
    lines = [cst.SimpleStatementLine(body=[s.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)]) for s in suite.body]
    lines[-1] = lines[-1].with_changes(trailing_whitespace=suite.trailing_whitespace)
    return cst.IndentedBlock(body=lines)


def has_comment(node):
    return "#" in cst.Module([]).code_for_node(node)


def is_docstring(statement):
    return isinstance(statement, cst.SimpleStatementLine) and isinstance(statement.body[0], cst.Expr) and isinstance(
        statement.body[0].value, (cst.SimpleString, cst.ConcatenatedString))


def remove_argument(call, keyword):
    args = list(call.args)
    at = next((i for i, a in enumerate(args) if a.keyword is not None and a.keyword.value == keyword), None)
    if at is None:
        raise RewriteError(f"the call has no argument {keyword}")
    removed = args.pop(at)
    if at == len(args) and args:
        args[-1] = args[-1].with_changes(comma=removed.comma, whitespace_after_arg=removed.whitespace_after_arg)
    return call.with_changes(args=args)


def name_arguments(call, names):
    """`f(a, x)` with (0, "alpha") becomes `f(x, alpha=a)`: commas and line breaks stay where they are."""
    args, chosen = list(call.args), dict(names)
    if any(i >= len(args) or args[i].keyword is not None or args[i].star for i in chosen):
        raise RewriteError("the call has other arguments")
    given = [a for i, a in enumerate(args) if i not in chosen and a.keyword is None]
    given += [args[i].with_changes(keyword=cst.Name(name), equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")))
              for i, name in names]
    given += [a for a in args if a.keyword is not None]
    return call.with_changes(args=[new.with_changes(comma=old.comma, whitespace_after_arg=old.whitespace_after_arg)
                                   for old, new in zip(args, given)])


def add_argument(call, code):
    new = cst.parse_expression(f"f({code})").args[0]
    args = list(call.args)
    if args and isinstance(args[-1].value, cst.GeneratorExp) and not args[-1].value.lpar:
        args[-1] = args[-1].with_changes(value=parenthesised(args[-1].value))
    if args:
        last = args[-1]
        if isinstance(last.comma, cst.Comma):
            separator = args[0].comma if len(args) > 1 else cst.Comma(whitespace_after=call.whitespace_before_args
                                                                      if not isinstance(call.whitespace_before_args, cst.SimpleWhitespace)
                                                                      or call.whitespace_before_args.value else cst.SimpleWhitespace(" "))
            new = new.with_changes(comma=last.comma)
            args[-1] = last.with_changes(comma=separator)
        else:
            new = new.with_changes(whitespace_after_arg=last.whitespace_after_arg)
            separator = args[0].comma if len(args) > 1 and isinstance(args[0].comma, cst.Comma) else cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
            args[-1] = last.with_changes(comma=separator, whitespace_after_arg=cst.SimpleWhitespace(""))
    return call.with_changes(args=[*args, new])


def add_filter(for_in, code):
    if for_in.inner_for_in is not None:
        return for_in.with_changes(inner_for_in=add_filter(for_in.inner_for_in, code))
    condition = cst.parse_expression(code)
    return for_in.with_changes(ifs=[*for_in.ifs, cst.CompIf(test=condition, whitespace_before=cst.SimpleWhitespace(" "))])


def ensure_import(module, name):
    at = 0
    for i, statement in enumerate(module.body):
        if isinstance(statement, cst.SimpleStatementLine) and isinstance(statement.body[0], (cst.Import, cst.ImportFrom)):
            first = statement.body[0]
            if isinstance(first, cst.Import) and any(cst.Module([]).code_for_node(a.name) == name and a.asname is None for a in first.names):
                return module
            future = isinstance(first, cst.ImportFrom) and first.module is not None and getattr(first.module, "value", "") == "__future__"
            if future or at in (i, 0):
                at = i + 1
        elif i == 0 and is_docstring(statement):
            at = 1
    line = cst.parse_statement(f"import {name}\n")
    body = list(module.body)
    following = body[at] if at < len(body) else None
    if at == 0 or is_docstring(body[at - 1]) or not isinstance(body[at - 1].body[0] if isinstance(body[at - 1], cst.SimpleStatementLine) else None,
                                                              (cst.Import, cst.ImportFrom)):
        if at:
            line = line.with_changes(leading_lines=[cst.EmptyLine(indent=False)])
        if following is not None and not (following.leading_lines and following.leading_lines[0].comment is None):
            body[at] = following.with_changes(leading_lines=[cst.EmptyLine(indent=False), cst.EmptyLine(indent=False), *following.leading_lines]
                                              if isinstance(following, (cst.FunctionDef, cst.ClassDef))
                                              else [cst.EmptyLine(indent=False), *following.leading_lines])
    return module.with_changes(body=[*body[:at], line, *body[at:]])
