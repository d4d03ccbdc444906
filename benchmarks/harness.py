"""How long does proving take?  A training loop with and without the recorder, and many runs of fixtures.

    python benchmarks/harness.py [--steps 1000] [--runs 200] [--processes 2]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from gradfix.harness.run import Limits, Runs, Script

ROOT = Path(__file__).resolve().parent.parent
LOOP = """\
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.{optimizer}(net.parameters(), lr=0.001)
x, y = torch.randn({batch}, 64), torch.randint(0, 10, ({batch},))
for step in range({steps}):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
print(loss.item())
"""


def script(path: Path) -> Script:
    return Script(str(path.resolve()), str(path.resolve().parent), str(path.resolve().parent), Limits(timeout=300))


def overhead(runs: Runs, folder: Path, steps: int, optimizer: str, batch: int) -> None:
    path = folder / "loop.py"
    path.write_text(LOOP.format(steps=steps, optimizer=optimizer, batch=batch))
    times: dict[str, list[float]] = {"plain": [], "record": []}
    printed = set()
    for _ in range(7):
        for mode, found in times.items():
            record = runs.run(script(path), mode=mode)
            if record.error is not None:
                raise SystemExit(f"{record.error}")
            found.append(record.seconds)
            printed.add(record.stdout)
    plain, watched = (min(found) for found in times.values())  # whatever else the machine does only adds
    same = "the same output" if len(printed) == 1 else "ANOTHER OUTPUT"
    print(f"{steps} steps of {optimizer}, batches of {batch}: {plain:.2f} s, recorded {watched:.2f} s: {watched / plain:.2f} times, {same}")


def many(runs: Runs, count: int) -> None:
    paths = sorted((ROOT / "fixtures").glob("*/*.py"))
    started = time.perf_counter()
    numbers = [runs.start(script(paths[i % len(paths)])) for i in range(count)]
    for number in numbers:
        runs.result(number)
    print(f"{count} runs of {min(count, len(paths))} fixtures on {runs.parallel} processes: {time.perf_counter() - started:.1f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    with Runs(options.processes) as runs, tempfile.TemporaryDirectory() as folder:
        for optimizer, batch in (("SGD", 32), ("Adam", 32), ("Adam", 256)):
            overhead(runs, Path(folder), options.steps, optimizer, batch)
        many(runs, options.runs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
