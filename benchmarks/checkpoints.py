"""What checkpoints cost: samples per second with and without them, side by side.

    python benchmarks/checkpoints.py [seconds of a run] [seconds between checkpoints]

Two workers at full speed, on processes of this machine, train ResNet-18 (11.2 M parameters) with Adam, so a checkpoint
has 134 MB: the least kind case, since little is computed between two of them. Runs with and without checkpoints take
turns; medians, and the ratio of each pair. Checkpoints go to a temporary folder: set TMPDIR to try a disk.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

import ownpace
from pictures import Pictures
from table import print_table

TURNS = 3
CASES = {"sync, resnet18": ("sync", "resnet18"), "async, resnet18": ("async", "resnet18"), "pace, mlp": ("pace", "mlp")}


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    every_s = float(sys.argv[2]) if len(sys.argv) > 2 else 20.0
    rows = []
    for name, (algorithm, model) in CASES.items():
        rate = run(algorithm, model, seconds, every=0)[0]  # how fast it is, and a first run for the caches
        every = max(1, round(rate * every_s))
        pairs = [(run(algorithm, model, seconds, every=0), run(algorithm, model, seconds, every)) for _ in range(TURNS)]
        without, with_them = (statistics.median(each[side][0] for each in pairs) for side in (0, 1))
        ratios = sorted(with_[0] / plain[0] for plain, with_ in pairs)
        rows.append(
            (
                name,
                f"{pairs[-1][1][1] / 1e6:,.0f} MB",
                f"{every:,}",
                f"{without:,.0f}",
                f"{with_them:,.0f}",
                f"{statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})",
            )
        )
    heads = (
        "algorithm, model",
        "checkpoint",
        "every (samples)",
        "samples/s without",
        "with",
        "ratio, range",
    )
    print_table(heads, rows)


def run(algorithm: str, model: str, seconds: float, every: int) -> tuple[float, int]:
    """Samples per second, and the bytes of the last checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        result = ownpace.train(
            algorithm=algorithm, task=Pictures(model, (3, 16, 16)), engine="process", fleet="x2", batch_size=8,
            optimizer="adam", lr=1e-4, seconds=seconds, eval_every=10**9, detail=False, checkpoint_every=every,
            out=Path(folder) / "run",
        )  # fmt: skip
        files = sorted((Path(folder) / "run" / "checkpoints").glob("*.safetensors"))
        return result.summary.samples_per_s, files[-1].stat().st_size if files else 0


if __name__ == "__main__":
    main()
