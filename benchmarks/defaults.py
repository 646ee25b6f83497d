"""What each algorithm learns of each built-in task if nothing is said but their names; writes docs/results/defaults.md.

    python benchmarks/defaults.py --tasks digits,quadratic --processes 2
    OWNPACE_DATA=data python benchmarks/defaults.py --tasks mnist,fashion-mnist --processes 12 --seconds 500 --kept FILE
    python benchmarks/defaults.py --add FILE

Each run is kept as it ends, in docs/results/defaults.jsonl or in the file that --kept names, and what was run before is
not run again: a check that was cut off, or whose --seconds were up, goes on with the same command. The page is made of
docs/results/defaults.jsonl; --add takes in what another machine has kept.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import torch

import ownpace
from ownpace.tasks import TASKS

PAGE = Path(__file__).parents[1] / "docs" / "results" / "defaults.md"
KEPT = PAGE.with_suffix(".jsonl")
SEEDS = (0, 1, 2)
FLEET = "4,2,1,1"
NEEDS = {"svmlight": {"path": "a9a.gz"}}
"""Parameters of tasks that cannot be made without."""
Row = dict[str, object]
Asked = tuple[str, str, int, str]
FOOT = """
`svmlight` is a9a. `acco` has four times the learning rate of the others, unless one is named: it sums up twice for each
update and bounds neither, so its updates are few and large. `cifar10` was run on a GPU; its
accuracy jumps by several per cent from one evaluation to the next, and its target is what every algorithm gets to.
`cifar100` and `images` have the general rate, 0.05, and are not checked.
"""

HEAD = """# Defaults: what each algorithm learns if nothing is said

`ownpace train --task T --algorithm A`: learning rate, momentum, schedule and epochs are the task's own (`ownpace list`
shows them), the fleet is `4,2,1,1` in virtual time, and nothing is searched for. They are there to begin with, and no
verdict on algorithms: each has a learning rate that suits it best, which `ownpace plan` looks for. The mean of some
seeds; in brackets, how many of how many reached the task's target, in two evaluations in a row.
`–` was not run. Made by [benchmarks/defaults.py](../../benchmarks/defaults.py).
"""


def one_run(asked: Asked) -> Row:
    """One run, in a few numbers."""
    task, algorithm, seed, device = asked
    torch.set_num_threads(1)
    usual = TASKS[task].defaults
    row: Row = {"task": task, "algorithm": algorithm, "seed": seed, "defaults": defaults_of(task, algorithm)}
    try:
        summary = ownpace.train(
            task=task,
            algorithm=algorithm,
            seed=seed,
            device=device,
            task_parameters=NEEDS.get(task, {}),
            fleet=FLEET,
            engine="virtual",
            detail=False,
            target=usual.target,
            target_loss=usual.target_loss,
        ).summary
    except ownpace.DivergenceError:
        return row | {"accuracy": None, "loss": None, "time_to_target": None, "updates": 0}
    names = ("accuracy", "loss", "time_to_target", "updates")
    return row | {name: getattr(summary, name) for name in names}


def read_kept(path: Path) -> list[Row]:
    """The runs of a file whose defaults are still the task's; a line that was cut off does not count."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return [row for row in rows if is_current(row)]


def is_current(row: Row) -> bool:
    """Whether the defaults are still those of the run."""
    return row["defaults"] == defaults_of(str(row["task"]), str(row["algorithm"]))


def defaults_of(task: str, algorithm: str) -> dict[str, object]:
    """What a run has that names nothing else."""
    usual = asdict(TASKS[task].defaults)
    return usual | {"lr": usual["lr"] * ownpace.ALGORITHMS[algorithm].times_usual_lr}


def cell(rows: Sequence[Row]) -> str:
    if not rows:
        return "–"
    usual = TASKS[str(rows[0]["task"])].defaults
    name, spec = ("accuracy", ".1%") if rows[0].get("accuracy") is not None else ("loss", ".3f")
    values = [row[name] for row in rows if isinstance(row[name], float)]
    if len(values) < len(rows):
        return "diverged"
    reached = sum(row["time_to_target"] is not None for row in rows)
    has_target = usual.target is not None or usual.target_loss is not None
    return f"{statistics.mean(values):{spec}}" + (f" ({reached} of {len(rows)})" if has_target else "")


def page(rows: Sequence[Row]) -> str:
    tasks = [task for task in TASKS if any(row["task"] == task for row in rows)]
    lines = [HEAD, "| task | " + " | ".join(tasks) + " |", "|---" * (len(tasks) + 1) + "|"]
    usual = [TASKS[task].defaults for task in tasks]
    lines += [
        f"| {name} | " + " | ".join(str(getattr(each, name)) for each in usual) + " |"
        for name in ("lr", "momentum", "schedule", "epochs")
    ]
    goals = [f"{u.target:.0%}" if u.target else f"loss {u.target_loss:g}" if u.target_loss else "–" for u in usual]
    lines.append("| target | " + " | ".join(goals) + " |")
    for algorithm in ownpace.ALGORITHMS:
        mine = [[r for r in rows if (r["task"], r["algorithm"]) == (task, algorithm)] for task in tasks]
        lines.append(f"| `{algorithm}` | " + " | ".join(map(cell, mine)) + " |")
    return "\n".join(lines) + "\n" + FOOT


def key(row: Row) -> tuple[object, ...]:
    """What tells one run from another."""
    return row["task"], row["algorithm"], row["seed"]


def write(path: Path, rows: Sequence[Row]) -> None:
    """The file, with these runs alone."""
    whole = path.with_name(path.name + ".new")
    whole.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    whole.replace(path)  # at once: a check that is cut off here must not lose what was run before


def run_all(asked: Sequence[Asked], processes: int, end: float, path: Path) -> list[Row]:
    """All runs that begin before `end`, each kept as it ends."""
    rows: list[Row] = []
    began = time.monotonic()
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool, path.open("a") as file:
        # No more at once than there are processes: the executor would begin whatever it has been handed.
        left, under_way = iter(asked), set[Future[Row]]()
        while True:
            if time.monotonic() < end:
                under_way |= {pool.submit(one_run, each) for each in islice(left, processes - len(under_way))}
            if not under_way:
                return rows
            done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
            for row in (each.result() for each in done):
                rows.append(row)
                file.write(json.dumps(row) + "\n")
                file.flush()
                print(f"{len(rows)} of {len(asked)} runs, {time.monotonic() - began:.0f} s: {key(row)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", default="digits,quadratic")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--kept", type=Path, default=KEPT)
    parser.add_argument("--add", type=Path)
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    options = parser.parse_args()
    known = {key(row): row for row in read_kept(options.kept)}
    if options.add:
        known |= {key(row): row for row in read_kept(options.add)}
    write(options.kept, list(known.values()))
    asked = [
        (task, algorithm, seed, options.device)
        for seed in SEEDS[: options.seeds]  # first: a check that is cut off has something of everything
        for task in ([] if options.add else options.tasks.split(","))
        for algorithm in ownpace.ALGORITHMS
        if (task, algorithm, seed) not in known
    ]
    rows = [*known.values(), *run_all(asked, options.processes, time.monotonic() + options.seconds, options.kept)]
    if options.kept == KEPT:
        PAGE.write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
