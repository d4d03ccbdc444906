"""Holds what the analysis claims about tensors against what torch says: static against run time.

    python tools/claims.py fixtures …          # scripts and folders of scripts
    python tools/claims.py --generated 2000    # random programs

A copy of each script runs in a child process in which every expression reports its value: `is_leaf`, `requires_grad`, whether `.grad` is
`None`, grad mode.  The analysis interprets the same file and says what it believes of the same expressions.  Where all its visits of
an expression agree, that is a claim, and each value seen there at run time must fit it.  The tool prints the claims checked, those
contradicted, and the share of tensor-valued expressions of which the analysis claims both `is_leaf` and `requires_grad`.

Exit status 1 where something was contradicted.  Needs torch.
"""

from __future__ import annotations

import argparse
import ast
import atexit
import functools
import os
import pickle
import signal
import subprocess
import sys
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gradfix.analysis.facts import Observations  # noqa: E402
from gradfix.analysis.interpreter import Interpreter, run_roots  # noqa: E402
from gradfix.analysis.modules import Project  # noqa: E402
from gradfix.analysis.values import Const, Number, Ref, values_of  # noqa: E402

EXPRESSIONS = (ast.Name, ast.Attribute, ast.Call, ast.BinOp, ast.UnaryOp, ast.Subscript, ast.IfExp)
MOST_PER_PLACE = 64  # values looked at of one expression
SECONDS = 20

Place = tuple[int, int, int, int]


def place(node: ast.AST) -> Place:
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


# ------------------------------------------------------------------------- run time
class Reporting(ast.NodeTransformer):
    """Wraps every expression that is read: `x + y` becomes `_seen_((1, 4, 1, 9), x + y)`."""

    def visit_expression(self, node):
        wanted = isinstance(node, EXPRESSIONS) and isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
        at = place(node) if wanted else None
        self.generic_visit(node)
        if not wanted:
            return node
        call = ast.Call(ast.Name("_seen_", ast.Load()), [ast.Constant(at), node], [])
        return ast.copy_location(call, node)

    def visit(self, node):
        if isinstance(node, ast.expr):
            return self.visit_Call(node) if isinstance(node, ast.Call) else self.visit_expression(node)
        return super().visit(node)

    def visit_Call(self, node):
        if isinstance(node.func, ast.Name):  # `super()` must stay what it is; what is called is no tensor
            at = place(node)
            node.args = [self.visit(a) for a in node.args]
            node.keywords = [self.visit(k) for k in node.keywords]
            return ast.copy_location(ast.Call(ast.Name("_seen_", ast.Load()), [ast.Constant(at), node], []), node)
        return self.visit_expression(node)

    def visit_AnnAssign(self, node):
        node.value = self.visit(node.value) if node.value is not None else None
        return node

    def visit_arg(self, node):
        return node

    def visit_FunctionDef(self, node):
        node.args = self.visit(node.args)
        node.body = [self.visit(s) for s in node.body]
        return node

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node):
        node.body = [self.visit(s) for s in node.body]
        return node

    def visit_Match(self, node):
        node.subject = self.visit(node.subject)
        for case in node.cases:
            case.body = [self.visit(s) for s in case.body]
        return node

    def visit_Delete(self, node):
        return node


def observe_running(path: Path, text: str) -> tuple[dict[Place, list[tuple]], str | None]:
    """{place: [(is a tensor, leaf, requires grad, grad is None, grad mode)]} of a run, and the error that ended it."""
    import torch

    seen: dict[Place, list[tuple]] = {}
    grad_of = torch._C.TensorBase.grad.__get__

    def report(at, value):
        found = seen.setdefault(at, [])
        if len(found) < MOST_PER_PLACE:
            mode = torch.is_grad_enabled()
            if isinstance(value, torch.Tensor):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    found.append((True, value.is_leaf, value.requires_grad, grad_of(value) is None, mode))
            else:
                found.append((False, None, None, None, mode))
        return value

    tree = ast.fix_missing_locations(Reporting().visit(ast.parse(text)))
    space = {"__name__": "__main__", "__file__": str(path), "_seen_": report, "__builtins__": __builtins__}
    torch.manual_seed(0)
    error = None
    try:
        exec(compile(tree, str(path), "exec"), space)
    except BaseException as raised:  # a mistake that raises is a mistake to be seen
        error = f"{type(raised).__name__}: {raised}"[:200]
    return seen, error


def in_child(work, seconds: int = SECONDS):
    """What `work` returns, computed in a forked child without output; None when it died or took too long."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            signal.alarm(seconds)
            null = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(null, stream)
            data = pickle.dumps(work())
            with os.fdopen(writer, "wb") as handle:
                handle.write(data)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as handle:
        data = handle.read()
    os.waitpid(child, 0)
    return pickle.loads(data) if data else None


def run_program(path: str, text: str, search: tuple[str, ...] = ()) -> tuple[dict[Place, list[tuple]], str | None] | None:
    """What `observe_running` says, from a child of a process that has done nothing but import torch."""
    server = _server()
    pickle.dump((path, text, search), server.stdin)
    server.stdin.flush()
    return pickle.load(server.stdout)


@functools.cache
def _server() -> subprocess.Popen:
    server = subprocess.Popen([sys.executable, __file__, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    atexit.register(server.kill)
    return server


def serve() -> int:
    """Runs programs, one request after the other; each in a child of its own."""
    import torch

    torch.set_num_threads(1)
    while True:
        try:
            path, text, search = pickle.load(sys.stdin.buffer)
        except EOFError:
            return 0

        def run():
            folder = os.path.dirname(os.path.abspath(path))
            os.chdir(folder)
            sys.path[:0] = [folder, *search]
            sys.argv = [path]
            return observe_running(Path(path), text)

        pickle.dump(in_child(run), sys.stdout.buffer)
        sys.stdout.buffer.flush()


# -------------------------------------------------------------------------- analysis
@dataclass
class Claim:
    """What all visits of an expression agree on; None where they don't, or where the analysis does not know."""

    tensor: bool | None = None
    leaf: bool | None = None
    requires_grad: bool | None = None
    no_grad: bool | None = None  # `.grad is None`
    mode: bool | None = None
    called: bool | None = None  # None or False: nothing in sight calls it, so the grad mode is assumed


class Claiming(Interpreter):
    """The interpreter, which also notes what it believes of each expression of one file."""

    def __init__(self, project, out):
        super().__init__(project, out)
        self.claims: dict[Place, Counter] = {}

    def eval(self, node):
        value = super().eval(node)
        if isinstance(node, EXPRESSIONS) and isinstance(getattr(node, "ctx", None) or ast.Load(), ast.Load) and self.st is not None:
            if self.st.frame is not None and self.st.frame.module.path == self.watched:
                self.claims.setdefault(place(node), Counter())[self.belief(value)] += 1
        return value

    def compare_test(self, node):
        if isinstance(node.left, ast.Name):  # `g is None` is decided without a look at `g`
            self.eval(node.left)
        return super().compare_test(node)

    def belief(self, value) -> tuple:
        """(tensor, leaf, requires grad, grad is None, grad mode), each of them three-valued, and whether the program calls it so."""
        beliefs = {self.believe(v) for v in values_of(value)}
        agreed = tuple(next(iter(column)) if len(column) == 1 else None for column in map(set, zip(*beliefs)))
        return (*agreed, self.st.mode, self.concrete)

    def believe(self, value) -> tuple:
        if isinstance(value, Const) or isinstance(value, Number):
            return False, None, None, None
        obj = self.obj(value) if isinstance(value, Ref) else None
        if obj is None or obj.kind == "opaque":
            return None, None, None, None
        if obj.kind != "tensor":
            return False, None, None, None
        if self.perhaps_number(obj):
            return None, None, None, None
        leaf = self.leaf_of(obj)
        itself = leaf is not None and obj.conversion in (None, "clone")  # and not perhaps another name of its source
        none = {"none": True, "cleared": True, "set": False}.get(self.grad_state(value)) if itself else None
        return True, leaf, obj.rg, none


    def perhaps_number(self, obj, depth=8) -> bool:
        """Is it the result of arithmetic on what can't be seen only, and so perhaps a number?"""
        operands = [self.st.heap.get(i) for i in obj.ins]
        return bool(obj.computed and depth) and all(
            o is None or o.kind == "opaque" or o.kind == "tensor" and self.perhaps_number(o, depth - 1) for o in operands)


def observe_statically(path: str, overlay: dict[str, bytes] | None = None, files: tuple[str, ...] = ()) -> dict[Place, Claim]:
    project = Project(files or (path,), overlay or {})
    module = project.module(path)
    if module is None:
        return {}

    def make(project, out):
        interpreter = Claiming(project, out)
        interpreter.watched = path
        return interpreter

    interpreter = run_roots(project, module, Observations(), None, make)
    claims = {}
    for at, beliefs in interpreter.claims.items():
        columns = [set(column) for column in zip(*beliefs)]
        claims[at] = Claim(*(next(iter(c)) if len(c) == 1 else None for c in columns))
    return claims


# ------------------------------------------------------------------------ comparison
@dataclass
class Report:
    programs: int = 0
    failed: int = 0  # programs of which nothing could be seen
    checked: int = 0  # claims held against at least one value
    tensors: int = 0  # expressions whose value was a tensor each time
    definite: int = 0  # of these, those of which leaf and requires_grad are claimed
    contradictions: list[str] = field(default_factory=list)
    reasons: Counter = field(default_factory=Counter)  # why nothing could be seen of a program
    unsure: Counter = field(default_factory=Counter)  # kinds of expressions without a definite claim

    @property
    def share(self) -> float:
        return self.definite / self.tensors if self.tensors else 1.0

    def lines(self) -> list[str]:
        return [
            f"programs {self.programs}, of which {self.failed} hold nothing to see",
            f"claims checked {self.checked}, contradicted {len(self.contradictions)}",
            f"tensor-valued expressions {self.tensors}, with a definite claim {self.definite} ({100 * self.share:.1f}%)",
        ]


def compare(name: str, text: str, claims: dict[Place, Claim], seen: dict[Place, list[tuple]], report: Report) -> None:
    lines = text.encode().splitlines()
    for at, values in sorted(seen.items()):
        claim = claims.get(at, Claim())
        if not claim.called:
            values = [v for v in values if v[4] == claim.mode]
        what = lines[at[0] - 1][at[1] : at[3] if at[0] == at[2] else None].decode("utf-8", "replace")
        tensors = [v for v in values if v[0]]
        if tensors and len(tensors) == len(values):
            report.tensors += 1
            definite = claim.leaf is not None and claim.requires_grad is not None
            report.definite += definite
            if not definite:
                report.unsure[f"{name}:{at[0]} {what}"] += 1
        checks = [("a tensor", claim.tensor, [v[0] for v in values]), ("grad mode on", claim.mode, [v[4] for v in values])]
        if claim.tensor is not False:
            checks += [
                ("is_leaf", claim.leaf, [v[1] for v in tensors]),
                ("requires_grad", claim.requires_grad, [v[2] for v in tensors]),
                ("grad is None", claim.no_grad, [v[3] for v in tensors]),
            ]
        for words, claimed, truths in checks:
            if claimed is None or not truths:
                continue
            report.checked += 1
            if any(truth != claimed for truth in truths):
                report.contradictions.append(f"{name}:{at[0]}:{at[1] + 1} `{what}`: {words}: claimed {claimed}, seen {not claimed}")


def check_text(name: str, text: str, report: Report, path: Path | None = None, files: tuple[str, ...] = (), search: tuple[str, ...] = ()) -> None:
    """Compare one program; `search` are folders to import from while it runs."""
    report.programs += 1
    at = path or Path("program.py")
    result = run_program(str(at), text, search)
    if result is None or not result[0]:
        report.failed += 1
        report.reasons[f"{name}: {result[1] if result else 'it died or took too long'}"] += 1
        return
    claims = observe_statically(str(at), {} if path is not None else {str(at): text.encode()}, files)
    compare(name, text, claims, result[0], report)


def check_generated(count: int, seed: int, report: Report) -> None:
    from torch_programs import programs

    for number, text in enumerate(programs(count, seed)):
        before = len(report.contradictions)
        check_text(f"generated {seed}/{number}", text, report)
        if len(report.contradictions) > before and before < 3:
            print(text, file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, help="scripts, or folders to look for them in")
    parser.add_argument("--generated", type=int, default=0, metavar="N", help="random programs to check")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--path", action="append", default=[], help="a folder that the scripts may import from")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--unsure", type=int, default=0, metavar="N", help="print N expressions without a definite claim")
    options = parser.parse_args()
    if options.serve:
        return serve()
    report = Report()
    for given in options.paths:
        for path in [given] if given.is_file() else sorted(given.rglob("*.py")):
            siblings = tuple(str(p) for p in sorted(path.parent.rglob("*.py")))
            try:
                text = path.read_text(encoding="utf-8")
                ast.parse(text)
            except (SyntaxError, UnicodeDecodeError):
                continue
            check_text(str(path), text, report, path, siblings if len(siblings) < 60 else (), tuple(options.path))
    if options.generated:
        check_generated(options.generated, options.seed, report)
    print(*report.contradictions, sep="\n" if report.contradictions else "")
    print(*report.lines(), sep="\n")
    for reason in report.reasons:
        print("not run:", reason, file=sys.stderr)
    for what, _ in report.unsure.most_common(options.unsure):
        print("unsure", what)
    return 1 if report.contradictions else 0


if __name__ == "__main__":
    sys.exit(main())
