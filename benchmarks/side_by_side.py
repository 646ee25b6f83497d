"""Both engines and the drop-in of this tree against those of another commit, in turns, in one run.

    git worktree add ../before COMMIT
    python benchmarks/side_by_side.py ../before

Every measurement is a process of its own, with the one or the other `src` on its path. The cases use only names that
have been public since the first release. Printed are medians over the turns, and their ratio: this tree over the other.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from table import print_table

HERE = Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other", type=Path, help="a checkout of the other commit")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--cases", default=";".join(CASES), help="some of them, with semicolons between")
    options = parser.parse_args()
    rows = []
    for case in options.cases.split(";"):
        ours, theirs = [], []
        for _ in range(options.turns):
            ours.append(measure(HERE, case))
            theirs.append(measure(options.other, case))
        ratio = statistics.median(ours) / statistics.median(theirs)
        rows.append((case, f"{statistics.median(theirs):,.0f}", f"{statistics.median(ours):,.0f}", f"{ratio:.2f}"))
        print(case, [round(a / b, 3) for a, b in zip(ours, theirs, strict=True)], file=sys.stderr, flush=True)
    print_table(("case", "other, per second", "this, per second", "ratio"), rows)


def measure(root: Path, case: str) -> float:
    """What one tree does per second."""
    environment = os.environ | {"PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1", "OWNPACE_CASE": case}
    done = subprocess.run(
        [sys.executable, __file__, "."], env=environment, capture_output=True, text=True, check=True, timeout=600
    )
    return float(json.loads(done.stdout.splitlines()[-1]))


def timing_only(num_workers: int, gradients: int) -> float:
    """Gradients of `async` per second of virtual time's own."""
    import ownpace

    machine = ownpace.Machine(samples_per_s=1, count=num_workers, jitter=0.1)
    start = time.perf_counter()
    ownpace.train(
        algorithm="async",
        task="quadratic",
        fleet=ownpace.Fleet(machine=(machine,)),
        batch_size=1,
        samples=gradients,
        timing_only=True,
        detail=False,
    )
    return gradients / (time.perf_counter() - start)


def virtual(algorithm: str) -> float:
    """Samples per second, with real gradients."""
    import ownpace

    start = time.perf_counter()
    summary = ownpace.train(algorithm=algorithm, task="digits", fleet="4,2,1,1", epochs=40, lr=0.02).summary
    return summary.samples / (time.perf_counter() - start)


def processes(algorithm: str) -> float:
    """Samples per second of two workers at full speed, by the run's own clock."""
    import ownpace

    return ownpace.train(
        algorithm=algorithm, engine="process", task="digits", fleet="x2", seconds=3.0, lr=0.01, detail=False
    ).summary.samples_per_s


def drop_in(algorithm: str) -> float:
    """Batches per second of a user's loop, alone."""
    import torch
    from torch.nn import functional

    import ownpace

    torch.manual_seed(0)
    dataset = torch.utils.data.TensorDataset(torch.randn(64_000, 64), torch.randint(10, (64_000,)))
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    batches, start = 0, 0.0
    with ownpace.join(algorithm) as fleet:
        model, optimizer = fleet.wrap(model, optimizer)
        for x, y in fleet.batches(dataset, batch_size=32):
            if not batches:
                start = time.perf_counter()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            batches += 1
    return batches / (time.perf_counter() - start)


CASES: dict[str, Callable[[], float]] = {
    "timing only, 100 workers": lambda: timing_only(100, 200_000),
    "timing only, 10000 workers": lambda: timing_only(10_000, 200_000),
    "virtual sync": lambda: virtual("sync"),
    "virtual pace": lambda: virtual("pace"),
    "virtual async": lambda: virtual("async"),
    "processes sync": lambda: processes("sync"),
    "processes pace": lambda: processes("pace"),
    "processes async": lambda: processes("async"),
    "drop-in sync": lambda: drop_in("sync"),
    "drop-in pace": lambda: drop_in("pace"),
}


if __name__ == "__main__":
    case = os.environ.get("OWNPACE_CASE")
    if case is None:
        main()
    else:
        print(json.dumps(CASES[case]()))
