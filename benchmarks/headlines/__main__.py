"""Try the papers' headlines, and write docs/results/headlines.md: `make headlines`. Hours; it may be interrupted.

ResNets want a GPU, and LeNet is faster on one: --models mlp on all cores, and beside it --models lenet resnet20
resnet18 --device cuda with a few processes; they may write to one file.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from claims.filling import Filling, read
from headlines.places import Headline, places
from headlines.told import tell

MODELS = ["mlp", "linear", "lenet", "resnet20", "resnet18"]
RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--kept", type=Path, default=RESULTS / "headlines.jsonl", help="where results are kept")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing after so many")
    parser.add_argument("--models", nargs="*", default=MODELS, help=f"only these of {', '.join(MODELS)}")
    parser.add_argument("--device", default="cpu", help="where gradients are computed: cpu or cuda")
    parser.add_argument("--no-page", action="store_true", help="only make the runs")
    options = parser.parse_args()
    tell(options.kept.resolve().with_suffix(".runs"), options.device)
    known = read(options.kept, Headline)
    wanted = [place for place in places() if place.model in options.models]
    filling = Filling(wanted, known, options.seconds)
    try:
        filling.fill(options.kept, options.processes)
    except KeyboardInterrupt:
        print("interrupted; what was found is kept", file=sys.stderr)
        sys.exit(130)
    if not options.no_page:
        from headlines.page import write

        write(read(options.kept, Headline), RESULTS)
    if filling.num_failed:
        sys.exit(f"{filling.num_failed} searches failed")


if __name__ == "__main__":
    main()
