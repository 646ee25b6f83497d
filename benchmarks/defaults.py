"""What each algorithm learns of each built-in task if nothing is said but their names; writes docs/results/defaults.md.

    python benchmarks/defaults.py --tasks digits,quadratic --processes 2
    OWNPACE_DATA=data python benchmarks/defaults.py --tasks mnist,fashion-mnist,cifar10 --device cuda --processes 4

Runs are kept in docs/results/defaults.jsonl, and the page is made of all of them: what was run before is not run again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
from collections.abc import Sequence
from dataclasses import asdict
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
FOOT = """
`svmlight` is a9a. `acco` sums up twice for each update and bounds neither: it makes the fewest and largest updates, and
needs a larger learning rate or a longer run than the others.
"""

HEAD = """# Defaults: what each algorithm learns if nothing is said

`ownpace train --task T --algorithm A`: learning rate, momentum, schedule and epochs are the task's own (`ownpace list`
shows them), the fleet is `4,2,1,1` in virtual time, and nothing is searched for. They are there to begin with, and no
verdict on algorithms: each has a learning rate that suits it best, which `ownpace plan` looks for. The mean of three
seeds; in brackets, how many of them reached the task's target, in two evaluations in a row. Made by
[benchmarks/defaults.py](../../benchmarks/defaults.py).
"""


def one_run(asked: tuple[str, str, int, str]) -> Row:
    """One run, in a few numbers."""
    task, algorithm, seed, device = asked
    torch.set_num_threads(1)
    usual = TASKS[task].defaults
    row: Row = {"task": task, "algorithm": algorithm, "seed": seed, "defaults": asdict(usual)}
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


def read_kept() -> list[Row]:
    lines = KEPT.read_text(encoding="utf-8").splitlines() if KEPT.exists() else []
    return [json.loads(line) for line in lines]


def is_current(row: Row) -> bool:
    """Whether the task's defaults are still those of the run."""
    return row["defaults"] == asdict(TASKS[str(row["task"])].defaults)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", default="digits,quadratic")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    kept = [row for row in read_kept() if is_current(row)]
    known = {(row["task"], row["algorithm"], row["seed"]) for row in kept}
    asked = [
        (task, algorithm, seed, options.device)
        for task in options.tasks.split(",")
        for algorithm in ownpace.ALGORITHMS
        for seed in SEEDS
        if (task, algorithm, seed) not in known
    ]
    KEPT.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool, KEPT.open("a", encoding="utf-8") as file:
        for row in pool.imap_unordered(one_run, asked):
            kept.append(row)
            file.write(json.dumps(row) + "\n")
            file.flush()
    PAGE.write_text(page(kept), encoding="utf-8")


if __name__ == "__main__":
    main()
