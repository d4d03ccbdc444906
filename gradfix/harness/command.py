"""`gradfix verify`, and what `gradfix apply --verify` asks of it."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import sys
from collections.abc import Sequence

import typer

from gradfix.findings import Finding, Verdict, place
from gradfix.harness.align import Difference
from gradfix.harness.judge import Judgement
from gradfix.harness.project import Proof, Verification, is_script
from gradfix.harness.rewrites import Rewrite, Rewriter, text_of
from gradfix.harness.run import HarnessError, Limits, Runs, memory_size
from gradfix.harness.trace import Value
from gradfix.source import data_of

MOST_ROWS = 20  # of the table of differences


def say(text: str) -> None:
    sys.stderr.write(text.encode("utf-8", "backslashreplace").decode("utf-8") + "\n")
    sys.stderr.flush()


def limits(timeout: float, memory: str, seed: int, arguments: str) -> Limits:
    try:
        return Limits(timeout=timeout, memory=memory_size(memory), seed=seed, arguments=shlex.split(arguments))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def devices(text: str, runs: Runs) -> tuple[list[str], list[str]]:
    """(devices to run on, those that are not here)."""
    wanted = [d.strip() for d in text.split(",") if d.strip()]
    for device in wanted:
        if device not in ("cpu", "cuda", "auto"):
            raise typer.BadParameter(f"{device!r} is no device; use cpu, cuda, auto or cpu,cuda")
    if not wanted:
        raise typer.BadParameter("--device wants cpu, cuda, auto or cpu,cuda")
    there = runs.has_cuda() if any(d != "cpu" for d in wanted) else False
    out, absent = [], []
    for device in wanted:
        chosen = ("cuda" if there else "cpu") if device == "auto" else device
        if chosen == "cuda" and not there:
            absent.append(chosen)
        elif chosen not in out:
            out.append(chosen)
    return out, absent


def verify(session, given: Sequence[str], device: str, limits: Limits, tolerance: float | None, strict: bool) -> int:
    named = {os.path.realpath(p) for p in given if os.path.isfile(p)}
    project = {path: text_of(path, open(path, "rb").read()) for path in session.files if os.path.isfile(path)}
    scripts = [p for p in session.files if os.path.realpath(p) in named or is_script(project.get(p, ""))]
    proofs: list[Proof] = []
    problems = list(session.problems)
    if not session.quiet:
        say(
            f"gradfix verify runs {len(scripts)} script{'s' if len(scripts) != 1 else ''} of yours, before and after the rewrite."
        )
    try:
        with session.runner() as runner, Runs(session.jobs) as runs:
            found, absent = devices(device, runs)
            for name in absent:
                say(f"warning: {name} is not here: nothing was verified on it")
            files = list(session.files)
            for path in modules_of(scripts, runs, limits):
                if not any(os.path.exists(f) and os.path.samefile(f, path) for f in files):
                    files.append(os.path.relpath(path))
            rewriter = Rewriter(files, session.settings, runner)
            for name in found:
                limits.device = name
                work = Verification(rewriter, scripts, runs, limits, tolerance)
                proofs += work.proofs()
            problems += rewriter.problems
    except HarnessError as error:
        say(f"error: {error}")
        return 2
    for problem in sorted({(p.path, p.row or 0, p.reason) for p in problems}):
        say("error: " + ":".join(str(part) for part in problem[:2] if part) + f": {problem[2]}")
    if session.format in ("json", "json-lines"):
        print(as_json(proofs))
    else:
        sys.stdout.write(full(proofs, absent, session.quiet))
    if problems or not found:
        return 2
    return exit_code([p.judgement for p in proofs], strict)


def verify_command(session, command: Sequence[str], timeout: float, tolerance: float | None, strict: bool) -> int:
    """`gradfix verify -- COMMAND`: one proof for all rewrites together."""
    from gradfix.harness.suite import Command

    if not session.quiet:
        say(f"gradfix verify runs `{shlex.join(command)}` in a copy of the project, before and after the rewrite.")
    try:
        with session.runner() as runner:
            rewriter = Rewriter(session.files, session.settings, runner)
            done = rewriter.make()
            if not done.after:
                judgement = Judgement(Verdict.PRESERVED, "nothing to rewrite")
            else:
                judgement = Command(command, list(done.after), timeout, tolerance).prove(done.before, done.after, done.rewrites)
    except HarnessError as error:
        say(f"error: {error}")
        return 2
    proofs = [Proof(shlex.join(command), "cpu", judgement, [(r, judgement) for r in done.rewrites])]
    for problem in rewriter.problems:
        say(f"error: {problem.path}: {problem.reason}")
    if session.format == "json":
        print(as_json(proofs))
    else:
        sys.stdout.write(full(proofs, [], session.quiet))
    return 2 if session.problems or rewriter.problems else exit_code([judgement], strict)


def kept(session, rewriter: Rewriter, name: str, command: str | None, timeout: float):
    """The rewrites that stay, and those that don't, with the evidence."""
    from gradfix.harness.suite import Command

    limits = Limits(timeout=timeout)
    with Runs(session.jobs) as runs:
        scripts = [p for p in session.files if is_script(text_of(p, data_of(rewriter.original, p)))]
        work = Verification(rewriter, scripts, runs, limits)
        if work.everything.after and not session.quiet:
            what = f"`{command}` in a copy of the project" if command else "your scripts"
            say(f"gradfix {name} --verify runs {what}, before and after the rewrite.")
        if command is not None and work.everything.after:
            judge = Command(shlex.split(command), list(work.everything.after), timeout)
            work.judge = lambda done: judge.prove(done.before, done.after, done.rewrites)
        return work.keep()


def unproven(session, runner, findings: Sequence[Finding], project, command: str | None, timeout: float) -> dict[Finding, str]:
    """Those of `findings` whose fixes, made together, do not prove right, and why not."""
    rewriter = Rewriter(session.files, session.settings, runner)
    keys = {rewriter.key(f, project): f for f in findings if f.fix is not None}
    chosen = dataclasses.replace(session.settings, wanted=lambda f, project: rewriter.key(f, project) in keys)
    rewriter.settings = chosen
    done, refused = kept(session, rewriter, "review", command, timeout)
    why = {rewrite.key: f"{judged.verdict.value}: {judged.reason}" for rewrite, judged in refused}
    proven = {rewrite.key for rewrite in done.rewrites}
    return {f: why.get(key, "it can't be made") for key, f in keys.items() if key not in proven}


def apply_verified(session, runner, command: str | None, timeout: float):
    """What `apply --verify` may write: the outcome of the rewrites that stay, and the number of those that don't."""
    try:
        done, refused = kept(session, Rewriter(session.files, session.settings, runner), "apply", command, timeout)
    except HarnessError as error:
        from gradfix.engine import Applied, Result
        from gradfix.findings import Problem

        return Applied({}, {}, Result(None, [], [Problem(".", str(error))], []), [])
    for rewrite, judged in refused:
        f = rewrite.finding
        say(f"not applied: {place_of(rewrite)} {f.code} {f.name}: {judged.verdict.value}: {judged.reason}")
        for line in table(judged.differences) if judged.differences else ():
            say(line)
    return done.applied


def exit_code(judgements: Sequence[Judgement], strict: bool) -> int:
    bad = {Verdict.CHANGED, Verdict.FAILED} | ({Verdict.INCONCLUSIVE} if strict else set())
    return 1 if any(j.verdict in bad for j in judgements) else 0


def modules_of(scripts: Sequence[str], runs: Runs, limits: Limits) -> list[str]:
    """Files of the project that the scripts load, besides themselves."""
    from gradfix.harness.run import locate

    located = [locate(path, limits) for path in scripts]
    started = [(script, runs.start(script)) for script in located]
    out = set()
    for script, number in started:
        record = runs.result(number)
        out |= {os.path.join(script.root, *name.split("/")) for name in record.modules} - {script.path}
    return sorted(out)


# ------------------------------------------------------------------------- reports


def number(value: Value | None) -> str:
    if value is None:
        return "None"
    numbers = value.numbers()
    if numbers is None:
        return f"{value.dtype}{value.shape}, norm {value.norm:.4g}"
    text = ", ".join(f"{x:.4g}" for x in numbers[:3])
    if len(numbers) > 3:
        text += f", … {len(numbers)} in all"
    return text if not value.shape else f"[{text}]"


def place_of(rewrite: Rewrite) -> str:
    return place(rewrite.finding.path, rewrite.finding.cell, rewrite.row)


def row_of(d: Difference) -> tuple[str, str, str, str, str]:
    what = {"value": d.name, "step": d.name, "requires_grad": f"{d.name}.requires_grad"}.get(d.kind, f"{d.name}.grad")
    where = f"{d.kind}, {place(d.place.path, d.place.cell, d.place.row)}" if d.place else ("at the end" if d.kind != "requires_grad" else "")
    before, after = number(d.before), number(d.after)
    if d.kind == "requires_grad":
        before, after = ("False", "True") if d.change == "gained" else ("True", "False")
    if not d.name:
        what, before, after = d.kind, "", d.note
    largest = d.largest
    return what, where, before, after, "" if largest is None else f"{largest:.3g}"


def table(differences: Sequence[Difference]) -> list[str]:
    rows = [("gradient", "where", "before", "after", "largest difference")]
    rows += [row_of(d) for d in differences[:MOST_ROWS]]
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    out = ["    " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    if len(differences) > MOST_ROWS:
        out.append(f"    … and {len(differences) - MOST_ROWS} more")
    return out


def full(proofs: Sequence[Proof], absent: Sequence[str], quiet: bool) -> str:
    out = []
    for proof in proofs:
        where = f" on {proof.device}" if proof.device != "cpu" else ""
        out.append(f"{proof.path}: {proof.judgement.verdict.value}{where}: {proof.judgement.reason}")
        for rewrite, judged in proof.rewrites:
            f = rewrite.finding
            text = f"  {place_of(rewrite)} {f.code} {f.name}: {judged.verdict.value}"
            out.append(text if judged is proof.judgement else f"{text}: {judged.reason}")
        out += [f"  note: {note}" for note in proof.judgement.notes]
        if proof.judgement.differences:
            out += table(proof.judgement.differences)
    counts = {v: sum(p.judgement.verdict is v for p in proofs) for v in Verdict}
    if not quiet:
        out.append(", ".join(f"{n} {v.value}" for v, n in counts.items() if n) + "." if proofs else "No scripts.")
    return "".join(line + "\n" for line in out)


def as_json(proofs: Sequence[Proof]) -> str:
    def judged(j: Judgement) -> dict:
        return {"verdict": j.verdict.value, "reason": j.reason}

    def value(v: Value | None):
        if v is None:
            return None
        return {"dtype": v.dtype, "shape": v.shape, "values": v.numbers(), "norm": v.norm if v.raw is None else None}

    def difference(d: Difference) -> dict:
        return {
            "kind": d.kind, "name": d.name, "change": d.change, "note": d.note,
            "filename": d.place.path if d.place else None, "cell": d.place.cell if d.place else None,
            "row": d.place.row if d.place else None,
            "before": value(d.before), "after": value(d.after), "largest": d.largest,
        }  # fmt: skip

    entries = [
        {
            "filename": p.path,
            "device": p.device,
            **judged(p.judgement),
            "notes": p.judgement.notes,
            "rewrites": [
                {
                    "code": r.finding.code,
                    "name": r.finding.name,
                    "filename": r.finding.path,
                    "cell": r.finding.cell,
                    "row": r.row,
                    "applicability": r.finding.fix.applicability.value,
                    "message": r.finding.fix.message,
                    **judged(j),
                }
                for r, j in p.rewrites
            ],
            "differences": [difference(d) for d in p.judgement.differences],
        }
        for p in proofs
    ]
    return json.dumps(clean(entries), indent=2)


def clean(value):
    """JSON has no NaN: `null` stands for it."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    if isinstance(value, dict):
        return {k: clean(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(v) for v in value]
    return value
