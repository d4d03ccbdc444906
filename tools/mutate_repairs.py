"""Does the harness catch a wrong repair?  The right repair of every fixture, broken mechanically one place at a time.

    python tools/mutate_repairs.py [FOLDER...] [--per-fixture N] [--verbose]

FOLDER is a folder of `fixtures/`; the default is all of them.  Each operator below is one kind of wrong rewrite, put
where the repair changed something or right beside it.  A mutant is caught when its verdict is not `preserved`, `gained`
or `repaired`.  One whose run differs in nothing from that of the right repair (no gradient, value, step, output or
exception) is no wrong rewrite, as far as running it can tell; those are counted apart.
"""

from __future__ import annotations

import argparse
import ast
import collections
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from fixture_support import FIXTURES, fixture_id  # noqa: E402
from harness_support import Verdict, rewritten, runs, script  # noqa: E402

from gradfix.harness.align import Rows  # noqa: E402
from gradfix.harness.judge import Judgement, Prover  # noqa: E402
from gradfix.harness.trace import Record  # noqa: E402

SIGNS = {ast.Add: "-", ast.Sub: "+"}
CALLS = {"add_": "sub_", "sub_": "add_", "mul_": "div_", "div_": "mul_"}
SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Delete, ast.Return)
BLOCKS = (ast.If, ast.With, ast.For, ast.While)


@dataclass(frozen=True)
class Mutant:
    operator: str
    row: int  # of the repaired text
    data: bytes


class Text:
    """A program and its statements, with the places of its nodes as offsets in its bytes."""

    def __init__(self, data: bytes):
        self.data, self.tree = data, ast.parse(data)
        self.starts = [0]
        for line in data.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.blocks = [
            block for node in ast.walk(self.tree) for name in ("body", "orelse", "finalbody")
            if isinstance(block := getattr(node, name, None), list) and block and isinstance(block[0], ast.stmt)
        ]  # fmt: skip

    def span(self, node) -> tuple[int, int]:
        return self.starts[node.lineno - 1] + node.col_offset, self.starts[node.end_lineno - 1] + node.end_col_offset

    def of(self, node) -> str:
        first, last = self.span(node)
        return self.data[first:last].decode()

    def put(self, *changes: tuple[ast.AST, str]) -> bytes:
        out = self.data
        for node, new in sorted(changes, key=lambda change: self.span(change[0]), reverse=True):
            first, last = self.span(node)
            out = out[:first] + new.encode() + out[last:]
        return out

    def header(self, node) -> range:
        """The rows of a statement without its body."""
        body = getattr(node, "body", None)
        return range(node.lineno, body[0].lineno if body else node.end_lineno + 1)


def touched(text: Text, changed: set[int]) -> Iterator[tuple[list[ast.stmt], int, bool]]:
    """(block, index, is it the repair's own) of the statements that the repair wrote, and of those beside them."""
    inside: set[ast.stmt] = set()
    for block in text.blocks:
        inside.update(s for s in block if changed.intersection(text.header(s)))
    for statement in list(inside):
        if isinstance(statement, (ast.If, ast.With)):
            inside.update(statement.body)
    for block in text.blocks:
        mine = {i for i, s in enumerate(block) if s in inside}
        for i, statement in enumerate(block):
            if i in mine:
                yield block, i, True
            elif {i - 1, i + 1} & mine and not isinstance(statement, (ast.Import, ast.ImportFrom)):
                yield block, i, False


def mutants(before: bytes, after: bytes) -> list[Mutant]:
    """Every wrong version of a repair that the operators make, without those that don't compile."""
    text = Text(after)
    changed = set(Rows(before.decode(), after.decode()).changed)
    out: dict[bytes, Mutant] = {}
    for block, index, own in touched(text, changed):
        for operator, data in _of_statement(text, block, index, own):
            if data == after or data in out:
                continue
            try:
                compile(data, "mutant.py", "exec", dont_inherit=True)
            except SyntaxError:
                continue
            out[data] = Mutant(operator, block[index].lineno, data)
    return list(out.values())


def _of_statement(text: Text, block: list[ast.stmt], index: int, own: bool) -> Iterator[tuple[str, bytes]]:
    statement = block[index]
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return
    yield ("a statement is dropped" if own else "the statement beside it is dropped"), text.put((statement, "pass"))
    parts = (
        [statement]
        if isinstance(statement, SIMPLE)
        else [getattr(statement, n) for n in ("test", "iter") if hasattr(statement, n)]
    )
    for part in parts:
        yield from _of_numbers(text, part)
    if not own:
        return
    if isinstance(statement, SIMPLE):
        for other, name in ((index + 1, "it comes one statement too late"), (index - 1, "it comes one statement too early")):
            if 0 <= other < len(block) and isinstance(block[other], (*SIMPLE, *BLOCKS)):
                yield name, text.put((statement, text.of(block[other])), (block[other], text.of(statement)))
        first, _ = text.span(statement)
        yield "it draws a random number more", text.data[:first] + b"torch.rand(1); " + text.data[first:]
    elif isinstance(statement, ast.If):
        yield "its guard swallows everything", text.put((statement.test, "False"))
        yield "its guard lets everything pass", text.put((statement.test, "True"))
    elif isinstance(statement, ast.With):
        first, end = text.span(statement)[0], text.span(statement.items[-1].context_expr)[1]
        yield "grad mode stays on", text.data[:first] + b"if True" + text.data[end:]
    for part in parts:
        yield from _of_own_part(text, part)


def _of_numbers(text: Text, part) -> Iterator[tuple[str, bytes]]:
    for node in ast.walk(part):
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            yield "a number is wrong", text.put((node, repr(node.value * 2 or 1)))
        elif isinstance(node, ast.BinOp) and type(node.op) in SIGNS:
            left, right = text.of(node.left), text.of(node.right)
            yield "a sign is flipped", text.put((node, f"({left} {SIGNS[type(node.op)]} ({right}))"))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            yield "a sign is flipped", text.put((node, f"({text.of(node.operand)})"))
        elif isinstance(node, ast.AugAssign) and type(node.op) in SIGNS:
            yield "a sign is flipped", text.put((node, f"{text.of(node.target)} {SIGNS[type(node.op)]}= {text.of(node.value)}"))
        elif isinstance(node, ast.Attribute) and node.attr in CALLS:
            yield "a sign is flipped", text.put((node, f"{text.of(node.value)}.{CALLS[node.attr]}"))


def _of_own_part(text: Text, part) -> Iterator[tuple[str, bytes]]:
    if isinstance(part, ast.AugAssign):
        operator = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}.get(type(part.op))
        if operator:
            target, value = text.of(part.target), text.of(part.value)
            yield "the update goes into a copy", text.put((part, f"{target}.data.clone() {operator} ({value})"))
            yield "the name is bound again", text.put((part, f"{target} = {target} {operator} ({value})"))
    if isinstance(part, ast.Assign) and isinstance(part.value, ast.expr):
        yield "the result is cut off", text.put((part.value, f"({text.of(part.value)}).detach()"))
    for node in ast.walk(part):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Is, ast.IsNot)):
            word = "is" if isinstance(node.ops[0], ast.IsNot) else "is not"
            yield "a guard is turned round", text.put((node, f"{text.of(node.left)} {word} {text.of(node.comparators[0])}"))
        elif isinstance(node, ast.keyword) and node.arg == "requires_grad" and isinstance(node.value, ast.Constant):
            yield "the flag is lost", text.put((node.value, repr(not node.value.value)))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = text.of(node.func.value)
            if node.func.attr == "requires_grad_":
                yield "the flag is lost", text.put((node, f"{owner}.requires_grad_(False)"))
            elif node.func.attr.endswith("_") and not node.func.attr.startswith("_"):
                rest = text.of(node)[len(owner) :]
                yield "the update goes into a copy", text.put((node, f"{owner}.clone(){rest}"))
            elif node.func.attr in ("stack", "cat") and node.args:
                yield "the terms are cut off", text.put((node.args[0], f"[t.detach() for t in {text.of(node.args[0])}]"))


# ------------------------------------------------------------------------- judging


def nothing_differs(right: Record, wrong: Record) -> bool:
    """Do two runs show the same, wherever they show it?"""

    def seen(record: Record):
        events = [(e.kind, e.values) for e in record.events if e.kind != "read"]
        error = record.error and (record.error.type, record.error.message)
        return events, record.end, record.plain, record.stdout, error

    return seen(right) == seen(wrong)


@dataclass
class Outcome:
    fixture: Path
    mutant: Mutant
    judgement: Judgement
    same: bool = False  # as the right repair

    @property
    def caught(self) -> bool:
        return not self.judgement.good

    def __str__(self) -> str:
        name = fixture_id(self.fixture)
        return f"{name}:{self.mutant.row}: {self.mutant.operator}: {self.judgement.verdict.value}: {self.judgement.reason}"


def outcomes(path: Path, most: int | None = None) -> Iterator[Outcome]:
    """The verdicts on mutants of one fixture's repair; nothing where the repair itself can't be judged."""
    done = rewritten(path)
    if str(path) not in done.after:
        return
    prover = Prover(runs(), script(path))
    right = prover.prove(done.before, done.after, done.rewrites)
    if not right.good:
        return
    made = mutants(done.before[str(path)], done.after[str(path)])
    if most is not None and most < len(made):
        made = random.Random(fixture_id(path)).sample(made, most)
    for mutant in made:
        judged = prover.prove(done.before, {str(path): mutant.data}, done.rewrites)
        same = judged.good and nothing_differs(right.after, judged.after)
        same |= judged.verdict is Verdict.PRESERVED and nothing_differs(right.before, judged.after)  # which is what that says
        yield Outcome(path, mutant, judged, same)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folders", nargs="*", metavar="FOLDER")
    parser.add_argument("--per-fixture", type=int, metavar="N", help="only so many mutants of each fixture")
    parser.add_argument("--verbose", action="store_true", help="every mutant, not only those that survive")
    options = parser.parse_args()
    names = {Path(folder).name for folder in options.folders}
    chosen = [p for p in FIXTURES if not p.stem.startswith("ok_") and (not names or p.parent.name in names)]
    table: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    fixtures = set()
    for path in chosen:
        for outcome in outcomes(path, options.per_fixture):
            fixtures.add(path)
            kind = "caught" if outcome.caught else "the same" if outcome.same else "survived"
            table[outcome.mutant.operator][kind] += 1
            if options.verbose or kind == "survived":
                print(f"{kind}: {outcome}", flush=True)
    print(f"{'operator':40} {'caught':>7} {'survived':>9} {'the same':>9}")
    total: collections.Counter = collections.Counter()
    for operator, counts in sorted(table.items()):
        total += counts
        print(f"{operator:40} {counts['caught']:7} {counts['survived']:9} {counts['the same']:9}")
    wrong = total["caught"] + total["survived"]
    share = f"{100 * total['caught'] / wrong:.2f} %" if wrong else "nothing"
    print(
        f"{len(fixtures)} fixtures, {wrong} wrong repairs, {share} caught; {total['the same']} more are the same in all that can be seen"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
