"""Fill the map's empty cells, and draw it: `make map`. Hours on a small machine; it may be interrupted."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from claims.filling import Filling, read
from maps.cells import Cell, cells

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--kept", type=Path, default=RESULTS / "map.jsonl", help="where results are kept")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing after so many")
    parser.add_argument("--workers", type=int, nargs="*", help="only cells of so many workers")
    parser.add_argument("--sums", type=float, nargs="*", help="only cells whose sum takes so many batches")
    parser.add_argument(
        "--again", nargs="*", default=[], help="search only these algorithms, also where they are known"
    )
    parser.add_argument("--no-page", action="store_true", help="only make the runs")
    options = parser.parse_args()
    known = read(options.kept, Cell)
    wanted = [cell for cell in cells() if not options.workers or cell.num_workers in options.workers]
    wanted = [cell for cell in wanted if not options.sums or cell.sum in options.sums]
    if options.again:
        # All others stay known: they cut off who is late.
        wanted = [cell for cell in wanted if cell in known]
        for cell in wanted:
            known[cell] = {label: each for label, each in known[cell].items() if label not in options.again}
    filling = Filling(wanted, known, options.seconds, options.again)
    try:
        filling.fill(options.kept, options.processes)
    except KeyboardInterrupt:
        print("interrupted; what was found is kept", file=sys.stderr)
        sys.exit(130)
    if not options.no_page:
        from maps.page import write

        write(known, RESULTS)
    if filling.num_failed:
        sys.exit(f"{filling.num_failed} searches failed")


if __name__ == "__main__":
    main()
