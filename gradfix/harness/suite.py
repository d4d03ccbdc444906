"""Judging by a command, such as a project's test suite, in a copy of the project with the recorder loaded."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field

from gradfix.findings import Verdict
from gradfix.harness.align import Difference, compare, is_told_apart
from gradfix.harness.judge import Judgement, by_first_difference, describe, main_one
from gradfix.harness.rewrites import Rewrite, texts
from gradfix.harness.run import HarnessError, Script, copy_project, environment, locate
from gradfix.harness.trace import Record, decode_record

MOST_OUTPUT = 1 << 20
LOADER = """\
import os, sys
sys.path[:] = [p for p in sys.path if p != os.path.dirname(os.path.abspath(__file__))]
sys.modules.pop("sitecustomize", None)
try:
    import sitecustomize
except ImportError:
    pass
from gradfix.harness.loader import load
load()
"""


@dataclass
class Outcome:
    code: int | None  # None: it ran too long
    output: str
    records: list[Record] = field(default_factory=list)


class Command:
    def __init__(self, command: Sequence[str], files: Sequence[str], timeout: float, tolerance: float | None = None):
        self.command, self.timeout, self.tolerance = list(command), timeout, tolerance
        here = os.path.realpath(os.getcwd())
        located = locate(os.path.join(here, "x"))
        self.script = Script(os.path.join(here, "x"), located.root, here)
        self._original: Outcome | None = None
        outside = [f for f in files if not os.path.realpath(f).startswith(self.script.root + os.sep)]
        if outside:
            raise HarnessError(f"{outside[0]} lies outside of {self.script.root}, where the command runs")

    def original(self) -> Outcome:
        if self._original is None:
            self._original = self.run({})
        return self._original

    def run(self, overlay: dict[str, bytes]) -> Outcome:
        """Run the command in a copy of the project in which files hold `overlay` (by real path)."""
        place = os.path.realpath(tempfile.mkdtemp(prefix="gradfix-"))
        try:
            root = os.path.join(place, os.path.basename(self.script.root) or "project")
            if (why := copy_project(self.script.root, root)) is not None:
                raise HarnessError(why)
            for path, data in overlay.items():
                with open(os.path.join(root, os.path.relpath(path, self.script.root)), "wb") as handle:
                    handle.write(data)
            return self._start(place, root)
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _start(self, place: str, root: str) -> Outcome:
        loader, records = os.path.join(place, "loader"), os.path.join(place, "records")
        os.makedirs(loader)
        os.makedirs(records)
        with open(os.path.join(loader, "sitecustomize.py"), "w") as handle:
            handle.write(LOADER)
        variables = environment()
        del variables["PYTHONSAFEPATH"]
        variables["PYTHONPATH"] = os.pathsep.join([loader, variables["PYTHONPATH"]])
        variables |= {"GRADFIX_RECORDS": records, "GRADFIX_ROOT": root}
        with tempfile.TemporaryFile() as output:
            try:
                process = subprocess.Popen(
                    self.command, cwd=os.path.join(root, os.path.relpath(self.script.folder, self.script.root)),
                    env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                    start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise HarnessError(f"{self.command[0]}: {(error.strerror or str(error)).lower()}") from None
            code: int | None
            try:
                code = process.wait(self.timeout)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except (ProcessLookupError, PermissionError):
                    pass
                process.wait()
            output.seek(0)
            text = output.read(MOST_OUTPUT).decode("utf-8", "replace")
        found = []
        for name in sorted(os.listdir(records)):
            with open(os.path.join(records, name), "rb") as handle:
                data = handle.read()
            if data:
                found.append(decode_record(data))
        return Outcome(code, text, found)

    def prove(self, before: dict[str, bytes], after: dict[str, bytes], rewrites: Sequence[Rewrite]) -> Judgement:
        old = self.original()
        if old.code is None:
            return Judgement(Verdict.INCONCLUSIVE, f"the command ran longer than {self.timeout:g} s before the rewrite")
        new = self.run({os.path.realpath(path): data for path, data in after.items()})
        if new.code is None:
            return Judgement(Verdict.FAILED, f"after the rewrite the command runs longer than {self.timeout:g} s")
        if new.code != 0 and old.code != new.code:
            last = next((line for line in reversed(new.output.splitlines()) if line.strip()), "")
            return Judgement(
                Verdict.FAILED, f"after the rewrite the command ends with {new.code}, before with {old.code}: {last[:200]}"
            )
        lines = texts(self.script, before, after)
        differences: list[Difference] = []
        for a, b in zip(old.records, new.records):
            if old.code == 0:
                differences += compare(a, b, lines, self.tolerance)
            else:  # what failed may have stopped anywhere
                differences += [d for d in compare(a, b, lines, self.tolerance) if d.change in ("gained", "lost", "changed")]
        harm = [d for d in differences if d.change not in ("gained", "appeared") and is_told_apart(d)]
        if harm and self.varies():
            return Judgement(Verdict.INCONCLUSIVE, "two runs of the command differ before the rewrite", differences)
        if harm:
            if any(Verdict.REPAIRED in r.promises for r in rewrites) and new.code == 0:
                return by_first_difference(differences, [])
            return Judgement(Verdict.CHANGED, describe(harm[0]), differences)
        if old.code != 0 and new.code == 0:
            return Judgement(Verdict.GAINED, f"the command succeeds; before, it ended with {old.code}", differences)
        if old.code != 0:
            return Judgement(
                Verdict.INCONCLUSIVE, f"the command fails before and after the rewrite, with {old.code}", differences
            )
        if differences:
            return Judgement(Verdict.GAINED, describe(main_one(differences)), differences)
        seen = sum(len(r.events) for r in new.records)
        return Judgement(Verdict.PRESERVED, f"the command succeeds and every gradient is as it was ({seen} events)")

    def varies(self) -> bool:
        again = self.run({})
        first = self.original()
        from gradfix.harness.align import Texts

        return again.code != first.code or any(
            compare(a, b, Texts(), self.tolerance) for a, b in zip(first.records, again.records)
        )
