"""Fill the map's empty cells, and draw it: `make map`. Hours on a small machine; it may be interrupted."""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

from claims.running import one_thread
from maps.cells import ENTRANTS, Cell, cells
from maps.search import search

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--kept", type=Path, default=RESULTS / "map.jsonl", help="where results are kept")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no cell after so many")
    parser.add_argument("--workers", type=int, nargs="*", help="only cells of so many workers")
    parser.add_argument("--no-page", action="store_true", help="only make the runs")
    options = parser.parse_args()
    known = read(options.kept)
    todo = {
        cell: list(known.get(cell, {}).values())
        for cell in cells()
        if set(ENTRANTS) - set(known.get(cell, ())) and (not options.workers or cell.num_workers in options.workers)
    }
    try:
        fill(todo, options.kept, options.processes, options.seconds)
    except KeyboardInterrupt:
        print("interrupted; finished cells are kept", file=sys.stderr)
        sys.exit(130)
    if not options.no_page:
        from maps.page import write

        write(read(options.kept), RESULTS)


def read(path: Path) -> dict[Cell, dict[str, dict[str, Any]]]:
    """What was found so far: of each cell, what became of each algorithm."""
    found: dict[Cell, dict[str, dict[str, Any]]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        entry = json.loads(line)
        found[Cell(**entry["cell"])] = {each["label"]: each for each in entry["found"] if each["label"] in ENTRANTS}
    return found


def fill(todo: Mapping[Cell, list[dict[str, Any]]], path: Path, processes: int, seconds: float) -> None:
    """Search all these cells, several at once; each is kept as soon as it is known."""
    started = time.monotonic()
    path.parent.mkdir(parents=True, exist_ok=True)
    waiting = iter(todo)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, initializer=one_thread) as pool, path.open("a") as kept:
        first = list(itertools.islice(waiting, processes))
        running = {pool.submit(search, cell, todo[cell]): cell for cell in first}
        done = 0
        while running:
            future = next(as_completed(running))
            cell, done = running.pop(future), done + 1
            kept.write(json.dumps({"cell": asdict(cell), "found": future.result()}) + "\n")
            kept.flush()
            passed = time.monotonic() - started
            left = passed / done * (len(todo) - done)
            print(f"{done} of {len(todo)} cells, about {left / 60:.0f} minutes left", file=sys.stderr, flush=True)
            following = next(waiting, None) if passed < seconds else None
            if following is not None:
                running[pool.submit(search, following, todo[following])] = following


if __name__ == "__main__":
    main()
