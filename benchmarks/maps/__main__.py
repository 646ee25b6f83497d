"""Fill the map's empty cells, and draw it: `make map`. Hours on a small machine; it may be interrupted."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

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
    done = read(options.kept)
    todo = [c for c in cells() if c not in done and (not options.workers or c.num_workers in options.workers)]
    try:
        fill(todo, options.kept, options.processes, options.seconds)
    except KeyboardInterrupt:
        print("interrupted; finished cells are kept", file=sys.stderr)
        sys.exit(130)
    if not options.no_page:
        from maps.page import write

        write(read(options.kept), RESULTS)


def read(path: Path) -> dict[Cell, dict[str, dict[str, object]]]:
    """What was found so far: of each cell, what became of each algorithm. A cell with others is not done."""
    found: dict[Cell, dict[str, dict[str, object]]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        entry = json.loads(line)
        if {each["label"] for each in entry["found"]} == set(ENTRANTS):
            found[Cell(**entry["cell"])] = {each["label"]: each for each in entry["found"]}
    return found


def fill(todo: list[Cell], path: Path, processes: int, seconds: float) -> None:
    """Search all these cells, several at once; each is kept as soon as it is known."""
    started = time.monotonic()
    path.parent.mkdir(parents=True, exist_ok=True)
    waiting = iter(todo)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, initializer=one_thread) as pool, path.open("a") as kept:
        running = {pool.submit(search, cell): cell for cell in (next(waiting, None) for _ in range(processes)) if cell}
        done = 0
        while running:
            future = next(as_completed(running))
            cell, done = running.pop(future), done + 1
            kept.write(json.dumps({"cell": asdict(cell), "found": future.result()}) + "\n")
            kept.flush()
            passed = time.monotonic() - started
            left = passed / done * (len(todo) - done)
            print(f"{done} of {len(todo)} cells, about {left / 60:.0f} minutes left", file=sys.stderr, flush=True)
            if passed < seconds and (cell := next(waiting, None)) is not None:
                running[pool.submit(search, cell)] = cell


if __name__ == "__main__":
    main()
