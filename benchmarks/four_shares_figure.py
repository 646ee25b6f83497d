"""Draw docs/images/four-shares.png: accuracy over time on four shares of a GPU, each way at its best learning rate."""

from __future__ import annotations

import json
from pathlib import Path

from matplotlib.figure import Figure

DOCS = Path(__file__).resolve().parents[1] / "docs"
SHOWN = {
    ("ddp", 0.1): "DDP",
    ("ddp-split", 0.3): "DDP, batches split by speed",
    ("abs", 0.02): "abs",
    ("pace+predict=own", 0.1): "pace",
    ("pace+warmup=20", 0.05): "pace, 20 updates of sync warm-up",
}


def main() -> None:
    figure = Figure(figsize=(7.5, 3.8), layout="constrained")
    axis = figure.subplots()
    for run in json.loads((DOCS / "results" / "four-shares.json").read_text()):
        label = SHOWN.get((run["way"], run["lr"]))
        if label is not None:
            axis.plot(*zip(*[(t, accuracy) for t, _, accuracy in run["curve"]], strict=True), label=label)
    axis.axhline(0.78, color="#999999", linewidth=0.8, linestyle=":")
    axis.set(xlabel="seconds", ylabel="test accuracy", xlim=(0, 20), ylim=(0, 0.85))
    axis.legend(frameon=False, loc="lower right")
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(DOCS / "images" / "four-shares.png", dpi=120)


if __name__ == "__main__":
    main()
