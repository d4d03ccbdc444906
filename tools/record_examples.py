"""Does recording leave a script alone?  Run every script of a folder without the recorder and with it, and compare.

    python tools/record_examples.py FOLDER [--arguments FILE] [--only TEXT] [--timeout SECONDS]

FOLDER is, for example, a checkout of pytorch/examples; a copy of it is run.  FILE (TOML) holds the arguments that a script
wants, as a list with one text per run: `"mnist/main.py" = ["--epochs 1 --dry-run"]`; in `[before]` stands which other
script makes what it reads.  `tools/record_examples.toml` is for pytorch/examples and is what is read where FILE is not
given.  Where a script wants MNIST or Wikitext-2, random images and words stand in for them.

What is compared: output, exception, and values and gradients that the script holds at its end.  A script that differs
from itself without the recorder is compared but for its numbers and their units; where these are not all that varies,
nothing can be said.  Exit code 1 when one differs.
"""

from __future__ import annotations

import argparse
import collections
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from gradfix.harness.align import NUMBER
from gradfix.harness.project import is_script
from gradfix.harness.run import Limits, Runs, locate
from gradfix.harness.trace import Record

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MNIST = re.compile(r"""(?:MNIST|APP_MATCHER)\(\s*(?:root\s*=\s*)?["']([^"']+)["']""")
WORDS = re.compile(r"""["']([^"']*wikitext-2)["']""")
IMAGES = {"train": 6000, "t10k": 1000}
TEXTS = {"train": 4000, "valid": 1000, "test": 1000}
MEASURED = re.compile(rf"(?:{NUMBER.pattern})[a-z\u00b5%]{{0,3}}", re.IGNORECASE)  # with its unit: 4.5ms, 83%


def random_mnist(folder: Path) -> None:
    """The files of MNIST, with noise in them."""
    import random

    noise = random.Random(0)
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for part, count in IMAGES.items():
        (raw / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">4I", 2051, count, 28, 28) + noise.randbytes(count * 784))
        labels = bytes(noise.randrange(10) for _ in range(count))
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 2049, count) + labels)


def random_words(folder: Path) -> None:
    """The files of Wikitext-2, where they are not there, with words in no order."""
    import random

    noise = random.Random(0)
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in TEXTS.items():
        path = folder / f"{part}.txt"
        if not path.exists():
            words = [noise.choice("abcdefghij") + str(noise.randrange(20)) for _ in range(count)]
            path.write_text("".join(" ".join(words[i : i + 20]) + "\n" for i in range(0, count, 20)))


def differs(plain: Record, watched: Record) -> str | None:
    """What recording has changed."""
    if plain.stopped != watched.stopped:
        return f"it {plain.detail or 'ends'}, and recorded it {watched.detail or 'ends'}"
    errors = [r.error and (r.error.type, r.error.message, r.error.place) for r in (plain, watched)]
    if errors[0] != errors[1]:
        return f"it ends with {errors[0]}, and recorded with {errors[1]}"
    if plain.stdout != watched.stdout:
        return "what it prints"
    for name, held in plain.end.items():
        if name in watched.end and held != watched.end[name]:
            return f"`{name}` at the end"
    return None


def masked(record: Record) -> str:
    return " ".join(MEASURED.sub("#", record.stdout).split())


def alike(a: Record, b: Record) -> bool:
    """Do two runs differ in numbers at most?"""
    return (a.error, a.stopped, masked(a)) == (b.error, b.stopped, masked(b))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    parser.add_argument("--arguments", type=Path, default=Path(__file__).with_suffix(".toml"), metavar="FILE")
    parser.add_argument("--only", default="", metavar="TEXT", help="only scripts whose path holds this")
    parser.add_argument("--timeout", type=float, default=300.0, metavar="SECONDS")
    options = parser.parse_args()
    arguments = tomllib.loads(options.arguments.read_text(encoding="utf-8"))
    makers = arguments.pop("before", {})
    counts: collections.Counter = collections.Counter()
    with tempfile.TemporaryDirectory() as place, Runs(1) as runs:
        folder = Path(place).resolve() / "examples"
        shutil.copytree(options.folder, folder, ignore=shutil.ignore_patterns(".git"))
        for path in sorted(folder.rglob("*.py")):
            text = path.read_text(encoding="utf-8", errors="replace")
            name = path.relative_to(folder).as_posix()
            if options.only not in name or not is_script(text):
                continue
            for data in MNIST.findall(text):
                random_mnist((path.parent / data).resolve())
            for data in WORDS.findall(text):
                random_words((path.parent / data).resolve())
            if name in makers:
                subprocess.run([sys.executable, *shlex.split(makers[name])], cwd=path.parent, check=True, stdout=subprocess.DEVNULL)
            for given in arguments.get(name, [""]):
                script = locate(str(path), Limits(timeout=options.timeout, memory=0, arguments=shlex.split(given)))
                plain, again, watched = [runs.run(script, mode=mode) for mode in ("plain", "plain", "record")]
                varies = differs(plain, again)
                what = differs(plain, watched)
                by_itself = not alike(plain, again)
                if varies is not None and (by_itself or alike(plain, watched)):
                    what = None
                kind = "differs" if what is not None else "does not run here" if plain.error or plain.stopped else "the same"
                kind = "varies by itself" if by_itself else kind
                counts[kind] += 1
                line = f"{name} {given}".strip() + f": {kind}"
                if by_itself:
                    line += f", without the recorder: {varies}"
                elif what is not None:
                    line += f": {what}"
                elif plain.error is not None:
                    line += f", with and without: {plain.error.type}: {plain.error.message[:100]}"
                elif plain.stopped is not None:
                    line += f", with and without: {plain.detail}"
                else:
                    line += f", {len(watched.events)} events, {plain.seconds:.1f} s, recorded {watched.seconds:.1f} s"
                    line += f" (but for numbers: without the recorder {varies} varies, too)" if varies else ""
                print(line, flush=True)
    print(", ".join(f"{n} {kind}" for kind, n in sorted(counts.items())) or "no scripts")
    return 1 if counts["differs"] else 0


if __name__ == "__main__":
    sys.exit(main())
