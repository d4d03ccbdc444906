"""The verdict on a rewrite, from the records of its runs.

`before` ran twice (a script that differs from itself proves nothing), `after` once and once more with every gradient
computed a second time (`reference`), and the original once on a forgiving autograd (`forgiven`, see `forgive`).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from gradfix import findings
from gradfix.findings import Verdict
from gradfix.harness.align import (
    Difference,
    Texts,
    close,
    compare,
    compare_forgiven,
    is_told_apart,
    of_kind,
    plain_difference,
    same_output,
)
from gradfix.harness.rewrites import Rewrite, forgive, in_their_cells, texts
from gradfix.harness.run import Runs, Script
from gradfix.harness.trace import Failure, Forgive, Place, Record, encode
from gradfix.old_python import async_arguments, with_async_renamed
from gradfix.source import SourceError, decode

GOOD = (Verdict.PRESERVED, Verdict.GAINED, Verdict.REPAIRED)


@dataclass
class Judgement:
    verdict: Verdict
    reason: str
    differences: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    before: Record | None = None
    after: Record | None = None

    @property
    def good(self) -> bool:
        return self.verdict in GOOD


def says(error: Failure | None, lines: Texts = Texts(), new: bool = False) -> str:
    """An exception, at its row of the original."""
    if error is None:
        return "it ends normally"
    where = where_of(lines.shown(lines.from_new(error.place) if new else error.place))
    return f"{error.type}: {error.message[:160]}{where}" if error.message else f"{error.type}{where}"


def where_of(place: Place | None) -> str:
    return f" ({findings.place(place.path, place.cell, place.row)})" if place else ""


def describe(difference: Difference, lines: Texts = Texts()) -> str:
    what = {
        "read": "`{}.grad`", "end": "`{}.grad` at the end", "value": "the value of `{}` at the end",
        "backward": "the gradient of `{}`", "grad": "the gradient of `{}`", "step": "`{}` after the step",
        "requires_grad": "`{}.requires_grad`",
    }[difference.kind].format(difference.name)  # fmt: skip
    if not difference.name:
        what = {"backward": "backward", "grad": "torch.autograd.grad", "step": "the optimizer's step"}[difference.kind]
    where = where_of(lines.shown(difference.place))
    note = f": {difference.note}" if difference.note else ""
    return f"{what} {'is ' if difference.change in ('lost', 'gained', 'changed') else 'has '}{difference.change}{where}{note}"


class Prover:
    """Runs what a verdict needs.  Runs of the original are shared between the rewrites of one script."""

    def __init__(self, runs: Runs, script: Script, tolerance: float | None = None):
        self.runs, self.script, self.tolerance = runs, script, tolerance
        if tolerance is None and script.limits.device != "cpu":
            self.tolerance = 1e-5
        self._known: dict[tuple, tuple[Record, str | None]] = {}
        self._forgiven: dict[tuple, Record] = {}

    def original(self, overlay: dict[str, bytes]) -> tuple[Record, str | None]:
        """The record of a program, and what is wrong with it as a witness."""
        key = tuple(sorted(overlay.items()))
        if key not in self._known:
            first = self.runs.start(self.script, overlay)
            second = self.runs.start(self.script, overlay)
            before, again = self.runs.result(first), self.runs.result(second)
            lines = Texts(cells=in_their_cells(self.script, self.program(overlay)))
            self._known[key] = (before, unfit(before, again, self.tolerance, lines))
        return self._known[key]

    def program(self, overlay: dict[str, bytes]) -> dict[str, bytes]:
        """The file that is run, by its path."""
        path = self.script.path
        if path in overlay:
            return {path: overlay[path]}
        with open(path, "rb") as handle:
            return {path: handle.read()}

    def forgiven(self, overlay: dict[str, bytes], watched: dict[str, list[int]], ways: Sequence[Forgive]) -> list[Record]:
        """Records of the original on a forgiving autograd, for each of the ways to forgive."""
        keys = [(tuple(sorted(overlay.items())), encode([watched, way])) for way in ways]
        started = {
            key: self.runs.start(self.script, overlay, mode="forgive", forgive=way, watched=watched)
            for key, way in zip(keys, ways)
            if key not in self._forgiven
        }
        for key, number in started.items():
            self._forgiven[key] = self.runs.result(number)
        return [self._forgiven[key] for key in keys]

    def prove(
        self,
        before_files: dict[str, bytes],
        after_files: dict[str, bytes],
        rewrites: Sequence[Rewrite],
        before_overlay: dict[str, bytes] | None = None,
        after_overlay: dict[str, bytes] | None = None,
        first_files: dict[str, bytes] | None = None,
    ) -> Judgement:
        """Judge the step from one set of file contents to another (by path as given, and by real path).

        Where `before_files` are themselves rewritten, what is said names the rows of `first_files`.
        """
        old = dict(before_overlay or {})
        mended = {os.path.realpath(p): text for p, data in before_files.items() if (text := mended_syntax(p, data)) is not None}
        old |= mended  # what does not parse is no witness: the same with that mended is
        new = after_overlay if after_overlay is not None else {os.path.realpath(p): d for p, d in after_files.items()}
        before, why = self.original(old)
        if why is not None:
            return Judgement(Verdict.INCONCLUSIVE, why, before=before)
        lines = texts(self.script, before_files, after_files)
        lines.cells = in_their_cells(self.script, first_files or before_files)
        if first_files is not None:
            lines.first = texts(self.script, first_files, before_files).rows
        watched = {path: rows.changed for path, rows in lines.rows.items() if rows.changed}
        after_run = self.runs.start(self.script, new, watched=watched)
        reference_run = self.runs.start(self.script, new, mode="reference")
        gone = {path: rows.removed for path, rows in lines.rows.items() if rows.removed}
        (forgiven,) = self.forgiven(old, gone, [forgive(self.script, rewrites)])
        after, reference = self.runs.result(after_run), self.runs.result(reference_run)

        def judged_by(record: Record) -> Judgement:
            return verdict(before, after, reference, record, lines, rewrites, self.script, self.tolerance)

        def judged_by_all() -> Judgement:
            out = judged_by(forgiven)
            if out.good and forgiven.error is None:
                return out
            # There is more than one way to forgive: a missing gradient need not mean zeros.
            ways = [{"none": "continue"}, {"none": "statement"}] if forgiven.skipped else []
            ways += [{"until": "step"}] if forgiven.postponed and of_kind(forgiven, "step") else []
            others = self.forgiven(old, {}, [forgive(self.script, rewrites, **way) for way in ways])
            found = [(forgiven, out)] + [(record, judged_by(record)) for record in others]
            whole = [judged for record, judged in found if record.error is None]
            most = max(len(record.events) for record, _ in found)
            able = whole or [judged for record, judged in found if len(record.events) == most]
            return next((judged for judged in able if judged.good), able[0])

        out = judged_by_all()
        if out.verdict in (Verdict.CHANGED, Verdict.FAILED) and before.error is not None and after.stopped is None:
            # What varies by itself behind the exception of the original was not seen in the original.
            again = self.runs.run(self.script, new)
            if unlike := compare(after, again, Texts(), self.tolerance):
                what = describe(dataclasses.replace(unlike[0], place=lines.from_new(unlike[0].place)), lines)
                out = Judgement(Verdict.INCONCLUSIVE, f"two runs after the rewrite differ: {what}", out.differences, out.notes)
            elif note_what_varies(after, again):
                out = judged_by_all()
        if mended and out.verdict is Verdict.PRESERVED:
            out.verdict, out.reason = Verdict.GAINED, "it parses, and every gradient is as it is with only that mended"
        out.differences = [dataclasses.replace(d, place=lines.shown(d.place)) for d in out.differences]
        out.before, out.after = before, after
        return out


def mended_syntax(path: str, data: bytes) -> bytes | None:
    """A file that does not parse for its `.cuda(async=True)`, with `non_blocking` in that place; None for any other file."""
    try:
        source = decode(path, data)
    except SourceError:
        return None
    if not async_arguments(source.text):
        return None
    return source.updated(source.encode(with_async_renamed(source.text, "non_blocking")))


def unfit(before: Record, again: Record, tolerance: float | None, lines: Texts = Texts()) -> str | None:
    if before.stopped is not None:
        words = {"time": before.detail, "memory": f"it ran out of memory ({before.detail})", "writes": before.detail}
        return f"the original can't be judged: {words.get(before.stopped, before.detail or before.stopped)}"
    if before.error is not None and before.error.type in ("ModuleNotFoundError", "ImportError", "SyntaxError"):
        return f"the original does not run: {says(before.error, lines)}"
    if before.error is not None and before.error.type == "PermissionError" and "gradfix" in before.error.message:
        return f"the original does not run: {before.error.message}"
    if before.dropped:
        return "it runs too many backwards and reads to compare them all"
    if again.stopped is not None:
        return f"two runs of the original differ: the second {again.detail or again.stopped}"
    if (before.error and (before.error.type, before.error.place)) != (again.error and (again.error.type, again.error.place)):
        return f"two runs of the original differ: {says(before.error, lines)} and {says(again.error, lines)}"
    if differences := compare(before, again, Texts(), tolerance):
        return f"two runs of the original differ: {describe(differences[0], lines)}"
    note_what_varies(before, again)
    return None


def note_what_varies(one: Record, other: Record) -> bool:
    """Do two runs of the same program differ in what they print or in plain data, such as the time?"""
    one.output_varies = one.stdout != other.stdout
    one.varies = {name for name, text in one.plain.items() if other.plain.get(name) != text}
    return one.output_varies or bool(one.varies)


def verdict(
    before: Record,
    after: Record,
    reference: Record,
    forgiven: Record,
    lines: Texts,
    rewrites: Sequence[Rewrite],
    script: Script,
    tolerance: float | None = None,
) -> Judgement:
    if after.stopped is not None:
        return Judgement(Verdict.FAILED, f"after the rewrite {after.detail or after.stopped}")
    if before.error is None and after.error is not None:
        return Judgement(
            Verdict.FAILED, f"after the rewrite it raises {says(after.error, lines, new=True)}", compare(before, after, lines, tolerance)
        )
    differences = compare(before, after, lines, tolerance)
    usable = forgiven.stopped is None
    against = compare_forgiven(forgiven, after, lines, tolerance) if usable else []
    notes = []
    crash_gone = before.error is not None and after.error is None
    gets_on = crash_gone

    if after.error is not None and before.error is not None:
        same_place = same_error(before.error, after.error, lines)
        meant = usable and forgiven.error is not None and same_error(forgiven.error, after.error, lines)
        gets_on = not same_place
        # Two gradients may be missing at one row, and the rewrite be about the first of them.
        got_on = any(
            d.kind == "read" and d.change == "gained" and before.error.place is not None and d.place == before.error.place
            for d in differences
        )
        if got_on:
            pass
        elif same_place and meant and names_row(rewrites, script, before.error):
            why = f"the script can't get past the rewritten lines: {says(after.error, lines, new=True)}"
            return Judgement(Verdict.INCONCLUSIVE, why, differences)
        elif same_place and names_row(rewrites, script, before.error):
            return Judgement(Verdict.FAILED, f"it still raises {says(after.error, lines, new=True)}", differences)
        elif not same_place and not meant:
            return Judgement(Verdict.FAILED, f"after the rewrite it raises {says(after.error, lines, new=True)}", differences)
        notes.append(f"the script still ends with {says(after.error, lines, new=True)}")

    ran = [path for record in (after, forgiven) for path, rows in record.ran.items() if rows]
    if not ran and any(rows.changed for rows in lines.rows.values()):
        return Judgement(Verdict.INCONCLUSIVE, "the rewritten lines did not run", differences, notes)

    backwards = of_kind(reference, "backward")
    # A run without its checkpoints can't speak for one that has them: there, what the latter came to is what is judged.
    judged = of_kind(after, "backward") if reference.unfolded else backwards
    for event, other in zip(backwards, judged):
        values = {**other.retained, **other.values}
        for name, expected in event.expected.items():
            if reference.unfolded and name not in values:
                continue
            value = values.get(name)
            if not close(expected, value, tolerance):
                wrong = Difference("backward", name, "changed", lines.from_new(event.place), expected, value, "autograd.grad says otherwise")
                return Judgement(Verdict.CHANGED, describe(wrong, lines), [wrong], notes)

    forgave = usable and (bool(forgiven.forgiven) or forgiven.skipped)
    if not differences and before.error is None:
        if against and forgave:
            return Judgement(Verdict.FAILED, f"nothing came of it: {describe(against[0], lines)}", against, notes)
        if against and (empty := still_none(before, after, forgiven, lines, rewrites, script)):
            return Judgement(Verdict.FAILED, f"`{empty}.grad` is still `None`", against, notes)
        if not before.output_varies and not after.output_varies and not same_output(before.stdout, after.stdout):
            return Judgement(Verdict.CHANGED, "what the script prints has changed, and no gradient explains it", [], notes)
        if name := plain_difference(before, after, before.varies | after.varies):
            return Judgement(Verdict.CHANGED, f"`{name}` has changed, and no gradient explains it", [], notes)
        return Judgement(Verdict.PRESERVED, "every gradient is as it was", [], notes)

    harm = [d for d in differences if d.change not in ("gained", "appeared") and is_told_apart(d)]
    if against:
        if not forgave and harm and any(Verdict.REPAIRED in r.promises for r in rewrites) and not crash_gone:
            return by_first_difference(differences, notes, lines)
        if harm and not forgave:
            return Judgement(Verdict.CHANGED, describe(harm[0], lines), harm, notes)
        return Judgement(Verdict.CHANGED, f"not what the original means: {describe(against[0], lines)}", against, notes)
    if harm and not forgave:
        return Judgement(Verdict.CHANGED, describe(harm[0], lines), harm, notes)
    if usable and (what := told_otherwise(before, after, forgiven)):
        return Judgement(Verdict.CHANGED, f"not what the original means: {what}", differences, notes)
    if not usable:
        notes.append(f"not compared with the original on a forgiving autograd: {forgiven.detail}")
    elif forgiven.error is not None:
        notes.append(f"compared with the original on a forgiving autograd until {says(forgiven.error, lines)}")
    if harm:
        return Judgement(Verdict.REPAIRED, f"{describe(harm[0], lines)}; all that follows is right", differences, notes)
    gained = [d for d in differences if is_told_apart(d)]
    if not gained and not gets_on:
        return Judgement(Verdict.PRESERVED, "every gradient is as it was", differences, notes)
    reason = describe(main_one(gained), lines) if gained else f"it no longer raises {says(before.error, lines)}"
    if gets_on and gained:
        notes.insert(0, f"it no longer raises {says(before.error, lines)}")
    return Judgement(Verdict.GAINED, reason, differences, notes)


def same_error(old: Failure, new: Failure, lines: Texts) -> bool:
    if old.type != new.type:
        return False
    if old.type == "RecursionError":  # which call is the one too many depends on how deep it began
        return True
    return lines.old(old.place) == lines.new(new.place) and same_output(old.message, new.message)


def told_otherwise(before: Record, after: Record, forgiven: Record) -> str | None:
    """What the rewritten script prints, or holds at its end, that neither the original does nor what it means."""
    if forgiven.error is not None or after.error is not None:
        return None
    whole = before.error is None
    if (
        not before.output_varies
        and not after.output_varies
        and not (whole and before.stdout == after.stdout)
        and not same_output(forgiven.stdout, after.stdout)
    ):
        return "what it prints"
    name = plain_difference(forgiven, after, before.varies | after.varies)
    if name is not None and not (whole and before.plain.get(name) == after.plain.get(name)):
        return f"the value of `{name}` at the end"
    return None


def main_one(differences: Sequence[Difference]) -> Difference:
    """The difference to name first: a gradient that somebody reads."""
    return next((d for d in differences if d.change == "gained"), differences[0])


def by_first_difference(differences: list[Difference], notes: list[str], lines: Texts = Texts()) -> Judgement:
    """Where the forgiving run knows no intent: what changes first must be which tensors take part, not a number."""
    order = {"requires_grad": 0, "backward": 1, "grad": 2, "step": 3, "read": 4, "value": 5, "end": 6}
    first = min(differences, key=lambda d: (d.at, order[d.kind]))
    if first.change in ("appeared", "vanished", "gained") or first.kind == "requires_grad":
        return Judgement(Verdict.REPAIRED, describe(first, lines), differences, notes)
    return Judgement(Verdict.CHANGED, describe(first, lines), differences, notes)


def names_row(rewrites: Sequence[Rewrite], script: Script, error: Failure) -> bool:
    if error.place is None:
        return False
    return any(script.relative(path) == error.place.path and error.place.row in rows for r in rewrites for path, rows in r.rows)


def still_none(before, after, forgiven, lines, rewrites, script) -> str | None:
    """A gradient that a finding names, that was `None`, is `None`, and need not be."""
    from gradfix.harness.align import reads

    theirs = reads(after, lines.new)
    for (where, name), values in reads(forgiven, lines.old).items():
        if any(v is not None and not v.supplied for v, _ in values):
            seen = theirs.get((where, name), [])
            if seen and all(v is None for v, _ in seen):
                place = values[0][1]
                if names_row(rewrites, script, Failure("", "", place)):
                    return name
    return None
