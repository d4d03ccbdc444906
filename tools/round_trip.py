"""See that `gradfix apply` leaves of notebooks all but the source lines that it repairs.

    python tools/round_trip.py FOLDER...

Copies every notebook below the folders to a temporary folder, each by itself, and applies all fixes of all rules.  Of each
one: written back as it was read, it has the same bytes; where nothing was repaired, it still has them; where something
was, only the source of code cells differs, no more lines of the file change than lines of source, nbformat takes it if it
took it before, and a second run changes nothing.
"""

from __future__ import annotations

import difflib
import json
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from gradfix import cli  # noqa: E402
from gradfix.source import SourceError, decode  # noqa: E402


def copies(folders: list[Path], target: Path) -> dict[Path, Path]:
    """copy -> original"""
    out = {}
    for number, path in enumerate(sorted(p for folder in folders for p in folder.rglob("*.ipynb") if p.is_file())):
        copy = target / f"{number:04}" / path.name
        copy.parent.mkdir(parents=True)
        shutil.copyfile(path, copy)
        out[copy] = path
    return out


def apply(folder: Path) -> None:
    cli.run(["apply", "--isolated", "--quiet", "--select", "ALL", "--unsafe-fixes", "--output-file", str(folder / "log"), str(folder)])


def is_valid(data: bytes) -> bool:
    try:
        nbformat.validate(nbformat.reads(data.decode(), as_version=nbformat.NO_CONVERT))
    except Exception:
        return False
    return True


def source_of(cell: dict) -> str:
    key = "input" if "input" in cell else "source"
    return "".join(cell[key])


def without_sources(notebook: dict) -> dict:
    plain = json.loads(json.dumps(notebook))
    for sheet in [plain, *plain.get("worksheets", ())]:
        for cell in sheet.get("cells", ()):
            if cell["cell_type"] == "code":
                cell.pop("source", None)
                cell.pop("input", None)
    return plain


def cells_of(notebook: dict) -> list[dict]:
    return [cell for sheet in [notebook, *notebook.get("worksheets", ())] for cell in sheet.get("cells", ())]


def changed_lines(before: list[str], after: list[str]) -> int:
    made = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    return sum(max(i2 - i1, j2 - j1) for tag, i1, i2, j1, j2 in made if tag != "equal")


def wrong(before: bytes, after: bytes) -> str | None:
    """What of a repaired notebook is not as it must be."""
    old, new = json.loads(before), json.loads(after)
    if without_sources(old) != without_sources(new):
        return "more than the source of code cells differs"
    if list(map(str, walk(old))) != list(map(str, walk(new))):
        return "the order of keys differs"
    pairs = [(a, b) for a, b in zip(cells_of(old), cells_of(new)) if a != b]
    wanted = sum(changed_lines(source_of(a).splitlines(), source_of(b).splitlines()) for a, b in pairs)
    # Behind the last line of a cell stands no comma: what is added after it changes that line of the file, too.
    if changed_lines(before.decode().splitlines(), after.decode().splitlines()) > wanted + len(pairs):
        return "more lines of the file changed than lines of source"
    if before.endswith(b"\n") != after.endswith(b"\n") or before.count(b"\r") > after.count(b"\r"):
        return "line ends differ"
    if is_valid(before) and not is_valid(after):
        return "nbformat does not take it any more"
    return None


def walk(value):
    """The keys of a document, in order."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from walk(inner)
    elif isinstance(value, list) and not all(isinstance(v, str) for v in value):
        for inner in value:
            yield from walk(inner)


def main() -> None:
    folders = [Path(name) for name in sys.argv[1:]] or sys.exit(__doc__)
    failures: list[str] = []
    count: Counter = Counter()
    with tempfile.TemporaryDirectory(prefix="round-trip-") as temporary:
        files = copies(folders, Path(temporary))
        contents = {copy: copy.read_bytes() for copy in files}
        for copy, data in contents.items():
            try:
                source = decode(str(copy), data)
            except SourceError as error:
                count[f"unreadable: {error.reason.split(':')[0]}"] += 1
                continue
            cells = {cell.index: "".join(cell.raw) for cell in source.cells}
            if source.updated(source.code) != data or source.write(cells) != data:
                failures.append(f"{files[copy]}: is not what was read")
        apply(Path(temporary))
        first = {copy: copy.read_bytes() for copy in files}
        apply(Path(temporary))
        for copy, data in contents.items():
            count["unchanged" if first[copy] == data else "repaired"] += 1
            if first[copy] != data and (why := wrong(data, first[copy])):
                failures.append(f"{files[copy]}: {why}")
            if copy.read_bytes() != first[copy]:
                failures.append(f"{files[copy]}: a second run changes it")
    print(f"{len(files)} notebooks:", ", ".join(f"{number} {what}" for what, number in sorted(count.items())))
    for line in failures:
        print(line)
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
