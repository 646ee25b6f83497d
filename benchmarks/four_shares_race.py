"""Draw docs/images/four-shares-race.png: accuracy at the end of a run over its seconds, on four shares of a GPU."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from statistics import mean

from matplotlib.figure import Figure

DOCS = Path(__file__).resolve().parents[1] / "docs"
LOOKS = {
    ("ddp-split", "gloo"): ("DDP, batches split by speed", "#888888"),
    ("balanced", "gloo"): ("balanced, sums through gloo", "#e0b48a"),
    ("balanced", "memory"): ("balanced", "#b5651d"),
    ("stride", ""): ("stride", "#2a9d74"),
}
"""By way and how sums went; for stride that makes no difference."""


def main() -> None:
    figure = Figure(figsize=(7.5, 3.8), layout="constrained")
    axis = figure.subplots()
    ended: dict[tuple[str, str], dict[float, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for run in json.loads((DOCS / "results" / "four-shares-recipe.json").read_text()):
        if "cores" in run:  # not the whole machine, whose cores sum for DDP
            continue
        way = run["way"], "" if run["way"] == "stride" else run["sums"]
        ended[way][run["epochs"]].append((run["seconds"], 100 * run["accuracy"]))
    for way, (label, colour) in LOOKS.items():
        lengths = sorted(ended[way])
        means = [tuple(map(mean, zip(*ended[way][epochs], strict=True))) for epochs in lengths]
        axis.plot(*zip(*means, strict=True), color=colour, label=label)
        axis.scatter(*zip(*(run for runs in ended[way].values() for run in runs), strict=True), color=colour, s=18)
        for epochs, (seconds, accuracy) in zip(lengths, means, strict=True):
            axis.annotate(f"{epochs:g}", (seconds, accuracy), xytext=(4, -12), textcoords="offset points", fontsize=8)
    axis.set(xlabel="seconds of a run; at each point, its epochs", ylabel="test accuracy at its end, %", xlim=(0, 50))
    axis.legend(frameon=False, loc="lower right")
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(DOCS / "images" / "four-shares-race.png", dpi=120)


if __name__ == "__main__":
    main()
