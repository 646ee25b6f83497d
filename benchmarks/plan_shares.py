"""Plans against measurements on one GPU cut into unequal ones: is the first choice of `ownpace plan` near the best?

    sh benchmarks/gpu.sh plan_shares.py [--kept runs/plan_shares.jsonl] [--until measure|plan|run]

As check_plans.py does for processes that keep prescribed paces; here they have their own. `measure` and `run` need the
GPU for themselves, `plan` takes cores alone. Every step is kept, and a second start goes on where the first was. Needs
OWNPACE_DATA, with MNIST.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import ownpace
from agreement import Notebook, RunFailed
from check_plans import ALGORITHMS, EPOCHS, NEAR, Row
from ownpace.fleet import fleet_from
from ownpace.measuring import measure_config
from ownpace.planning import plan
from shares import is_rank, run_ranks, take_share

STEPS = ("measure", "plan", "run")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shares", default="40,20,10,10", help="percent of the GPU for each process")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--task", default="mnist")
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--target", type=float, default=0.985)
    parser.add_argument("--eval-every", type=int, default=10_000)
    parser.add_argument("--planning", type=float, default=60.0, help="seconds for the plan, about")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--until", choices=STEPS, default="run", help="the last step to make")
    parser.add_argument("--kept", type=Path, default=Path("runs/plan_shares.jsonl"), help="a file for what was done")
    parser.add_argument("--jobs", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if is_rank():
        run_rank(options)
        return
    options.kept.parent.mkdir(parents=True, exist_ok=True)
    notebook = Notebook(options.kept, float("inf"))
    wanted = STEPS[: STEPS.index(options.until) + 1]
    measured = notebook.note("measure", lambda: on_shares(options, [{"what": "measure"}])[0])
    if "plan" in wanted:
        planned = notebook.note("plan", lambda: planned_for(options, measured["fleet"]))
    if "run" in wanted:
        runs = notebook.note("run", lambda: {"runs": on_shares(options, jobs_of(planned["ranking"], options.seeds))})
        show(options, planned, runs["runs"])


def config_of(options: argparse.Namespace) -> ownpace.Config:
    return ownpace.Config(
        task=options.task,
        model=options.model,
        batch_size=options.batch,
        momentum=0.9,
        target=options.target,
        eval_every=options.eval_every,
        fleet=f"x{len(options.shares.split(','))}",
    )


def planned_for(options: argparse.Namespace, fleet: dict[str, Any]) -> dict[str, Any]:
    config = replace(config_of(options), fleet=fleet_from(fleet))
    return plan(config, algorithms=ALGORITHMS, what_if=(), seconds=options.planning).to_json()


def jobs_of(ranking: list[dict[str, Any]], num_seeds: int) -> list[dict[str, Any]]:
    known = [each for each in ranking if each["lr"] is not None]
    if not known:
        raise RunFailed("the plan had no time for any learning rate; give it more with --planning")
    chosen = [{name: each[name] for name in ("algorithm", "parameters", "lr")} for each in known]
    return [{"what": "run", "seed": seed, "chosen": each} for seed in range(num_seeds) for each in chosen]


def on_shares(options: argparse.Namespace, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Do these one after the other, in the same processes; those that ended."""
    with tempfile.TemporaryDirectory() as folder:
        listed, found = Path(folder) / "jobs.json", Path(folder) / "found.jsonl"
        listed.write_text(json.dumps(jobs))
        arguments = [*sys.argv[1:], "--jobs", str(listed), "--kept", str(found)]
        run_ranks(__file__, arguments, len(options.shares.split(",")), threads=2)
        return [json.loads(line) for line in found.read_text().splitlines()]


def run_rank(options: argparse.Namespace) -> None:
    take_share(options.shares)
    config = replace(config_of(options), device=options.device)
    for job in json.loads(options.jobs.read_text()):
        found = measured(config) if job["what"] == "measure" else {**job, **trained(config, job)}
        if int(os.environ["RANK"]) == 0:
            print(found, flush=True)
            with options.kept.open("a") as kept:
                kept.write(json.dumps(found) + "\n")
    os._exit(0)  # gloo's threads sometimes trip over a Python that is being taken down


def measured(config: ownpace.Config) -> dict[str, Any]:
    found = measure_config(config, seconds=8.0)
    return {"fleet": {key: value for key, value in asdict(found.fleet).items() if key in ("machine", "network")}}


def trained(config: ownpace.Config, job: dict[str, Any]) -> dict[str, Any]:
    """One algorithm, until the target is reached."""
    ending: dict[str, Any] = {"epochs": EPOCHS, "stop_at_target": True, "detail": False}
    result = ownpace.execute(replace(config, engine="process", seed=job["seed"], **job["chosen"], **ending))
    summary = result.summary
    return {
        "time_to_target": summary.time_to_target,
        "samples_per_s": summary.samples_per_s,
        "share_of_limit": summary.share_of_limit,
        "reason": summary.reason,
    }


def show(options: argparse.Namespace, planned: dict[str, Any], runs: list[dict[str, Any]]) -> None:
    took: dict[str, list[float | None]] = {}
    for run in runs:
        took.setdefault(run["chosen"]["algorithm"], []).append(run["time_to_target"])
    there = {name: [time for time in each if time is not None] for name, each in took.items() if None not in each}
    row = Row(f"a GPU cut into {options.shares}", planned["ranking"], there, planned["seconds"])
    print(" | ".join(row.cells()))
    print("near the best" if row.behind is not None and row.behind <= NEAR else "not near the best")


if __name__ == "__main__":
    main()
