"""Plans against measurements: on real processes, is the first choice of `ownpace plan` near the best algorithm?

    python benchmarks/check_plans.py [--kept runs/plans.jsonl] [--limit 600] [--places small --seeds 9]

Nothing else should run meanwhile. Over ten fleets whose workers keep prescribed paces as processes of this machine:

    measure    what `ownpace measure` finds of that fleet, this machine's sums included
    plan       what `ownpace plan` makes of that: algorithms in order, each with its learning rate
    run        each of these algorithms on the processes, at that rate, until the target is reached, with each seed;
               given up after twice the time of the best before it

How far behind the best a first choice is has a standard error, from the differences seed by seed: single runs with
small batches spread by a fifth and more, so three seeds cannot tell ten per cent, and nine just about.

Every step is kept as a line of JSON as soon as it has ended, and a second start goes on where the first was. The table
goes into docs/results/planning.md, in the place of the one that is there.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import ownpace
from agreement import Notebook, OutOfTime, RunFailed
from ownpace.fleet import fleet_from
from ownpace.measuring import measure_config
from ownpace.planning import plan

PAGE = Path(__file__).parent.parent / "docs" / "results" / "planning.md"
BEGIN, END = "<!-- table -->", "<!-- end of table -->"
ALGORITHMS = ("sync", "balanced", "pace", "stride", "diloco", "async")
NEAR = 1.1
EPOCHS = 25
"""Of a run that does not get there."""
GIVEN_UP = 2.0
"""Times the best: later, it does not matter how late."""
CHANCE = 2.0
"""Standard errors that a difference must be more than, to be one."""


def machine(samples_per_s: float, count: int = 1, **more: Any) -> ownpace.Machine:
    return ownpace.Machine(samples_per_s=samples_per_s, count=count, **more)


@dataclass(frozen=True)
class Place:
    """A fleet and what is trained on it."""

    about: str
    machines: tuple[ownpace.Machine, ...]
    batch_size: int = 32
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> ownpace.Config:
        settings: dict[str, Any] = {"task": "digits", "momentum": 0.9, "target": 0.94, "eval_every": 400}
        return ownpace.Config(
            fleet=ownpace.Fleet(machine=self.machines), batch_size=self.batch_size, **{**settings, **self.more}
        )


PLACES = {
    "alike": Place("four alike", (machine(1500, 4),)),
    "pair": Place("two, one four times as fast", (machine(3000), machine(750))),
    "mild": Place("two generations, 2:2:1:1", (machine(2000, 2), machine(1000, 2))),
    "steep": Place("four generations, 8:4:2:1", tuple(machine(500 * pace) for pace in (8, 4, 2, 1))),
    "one-slow": Place("three alike, one ten times slower", (machine(2000, 3), machine(200))),
    "one-fast": Place("one eight times as fast as three", (machine(4000), machine(500, 3))),
    "uneven": Place("two generations that jitter", (machine(2000, 2, jitter=0.5), machine(1000, 2, jitter=0.5))),
    "begin": Place(
        "as long to begin a batch as to compute it", (machine(4000, 2, s_per_batch=0.016), machine(1000, 2))
    ),
    "small": Place("2:2:1:1, batches of 8", (machine(1000, 2), machine(500, 2)), batch_size=8),
    "large": Place("2:2:1:1, batches of 96", (machine(3000, 2), machine(1500, 2)), batch_size=96),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kept", type=Path, default=Path("runs/plans.jsonl"), help="a file for what was done")
    parser.add_argument("--limit", type=float, default=float("inf"), help="begin nothing after so many seconds")
    parser.add_argument("--places", default=",".join(PLACES), help="which fleets, with commas between")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each algorithm")
    parser.add_argument("--planning", type=float, default=60.0, help="seconds for each plan, at most")
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args()
    options.kept.parent.mkdir(parents=True, exist_ok=True)
    notebook = Notebook(options.kept, options.limit)
    rows: list[Row] = []
    with contextlib.suppress(OutOfTime):  # the table of what there is
        for name in options.places.split(","):
            try:
                rows.append(checked(notebook, name, PLACES[name], options.planning, range(options.seeds)))
            except RunFailed as error:  # not kept: another start makes it again
                print(f"{name}: {error}", file=sys.stderr)
                continue
            print(" | ".join(rows[-1].cells()), flush=True)
    write_page(options.page, rows)


@dataclass(frozen=True)
class Row:
    """What was planned for one fleet, and what was measured."""

    about: str
    ranking: Sequence[Mapping[str, Any]]
    took: Mapping[str, Sequence[float]]
    """Seconds to the target on processes with each seed, of those that got there with all of them."""
    seconds: float
    """That planning took."""

    @property
    def times(self) -> dict[str, float]:
        """Mean seconds to the target."""
        return {name: statistics.fmean(each) for name, each in self.took.items()}

    @property
    def first(self) -> str:
        return str(self.ranking[0]["algorithm"])

    @property
    def behind(self) -> float | None:
        """How many times as long as the best the first choice took."""
        return self.times[self.first] / min(self.times.values()) if self.first in self.times else None

    @property
    def error(self) -> float | None:
        """The standard error of that; None: it is the best itself, or there was one seed."""
        if self.first not in self.took:
            return None
        best = min(self.times, key=self.times.__getitem__)
        apart = [one - other for one, other in zip(self.took[self.first], self.took[best], strict=True)]
        if best == self.first or len(apart) < 2:
            return None
        return statistics.stdev(apart) / math.sqrt(len(apart)) / self.times[best]

    @property
    def is_chance(self) -> bool:
        """Whether chance explains how far behind it is."""
        return self.behind is not None and self.error is not None and self.behind - 1 < CHANCE * self.error

    def cells(self) -> tuple[str, ...]:
        predicted = {each["algorithm"]: each["time_to_target"] for each in self.ranking}
        told = ["–" if (s := predicted[self.first]) is None else f"{s:.2f} s"]
        told.append(f"{self.times[self.first]:.2f} s" if self.first in self.times else "not reached")
        order = sorted(self.times, key=lambda name: self.times[name])
        best = ", ".join(f"`{name}` {self.times[name]:.2f} s" for name in order[:3])
        behind = "–" if self.behind is None else f"{self.behind:.2f}"
        behind += "" if self.error is None else f" ± {self.error:.2f}"
        return self.about, f"`{self.first}`", *told, best or "none", behind


def checked(notebook: Notebook, name: str, place: Place, planning_s: float, seeds: Iterable[int]) -> Row:
    """Measure, plan and run one fleet."""
    config = place.config
    assert isinstance(config.fleet, ownpace.Fleet)
    found = notebook.note(f"{name}: measure", lambda: _measured(config))
    planned = notebook.note(f"{name}: plan", lambda: _planned(config, fleet_from(found["fleet"]), planning_s))
    ranking = planned["ranking"]
    took: dict[str, list[float]] = {}
    for each in ranking:
        limit_s = GIVEN_UP * min(map(statistics.fmean, took.values())) if took else None
        runs = [
            notebook.note(f"{name}: run, {each['algorithm']}, seed {seed}", partial(_run, config, each, seed, limit_s))
            for seed in seeds
        ]
        if all(run["time_to_target"] is not None for run in runs):
            took[each["algorithm"]] = [run["time_to_target"] for run in runs]
    return Row(place.about, ranking, took, planned["seconds"])


def _measured(config: ownpace.Config) -> dict[str, Any]:
    found = measure_config(config, seconds=6.0)
    return {"fleet": {key: value for key, value in asdict(found.fleet).items() if key in ("machine", "network")}}


def _planned(config: ownpace.Config, fleet: ownpace.Fleet, seconds: float) -> dict[str, Any]:
    made = plan(replace(config, fleet=fleet), fleet, algorithms=ALGORITHMS, what_if=(), seconds=seconds)
    missing = [each.algorithm for each in made.ranking if each.lr is None]
    if missing:  # on a busy machine; then nothing of them could be measured at a rate of their own
        raise RunFailed(f"a plan had no time for {', '.join(missing)}; give it more with --planning")
    return made.to_json()


def _run(config: ownpace.Config, ranked: Mapping[str, Any], seed: int, limit_s: float | None) -> dict[str, Any]:
    """One algorithm on processes; what fails is kept, too."""
    made_of = {name: ranked[name] for name in ("algorithm", "parameters", "lr")}
    chosen = replace(config, seed=seed, **made_of)
    ending: dict[str, Any] = {"epochs": EPOCHS, "seconds": limit_s, "stop_at_target": True}
    result = ownpace.execute(replace(chosen, engine="process", detail=False, **ending))
    if result.error is not None and result.error.exit_code != 3:  # divergence says something of the rate
        raise RunFailed(f"{ranked['algorithm']}: {result.error}")
    summary = result.summary
    return {
        "time_to_target": summary.time_to_target,
        "samples_per_s": summary.samples_per_s,
        "updates": summary.updates,
    }


def write_page(path: Path, rows: Sequence[Row]) -> None:
    """Put the table into the page."""
    near = [row for row in rows if row.behind is not None and row.behind <= NEAR]
    chance = [row for row in rows if row not in near and row.is_chance]
    heads = ("fleet", "plan's first choice", "predicted", "measured", "the three best measured", "times the best")
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    lines += [f"| {' | '.join(row.cells())} |" for row in rows]
    others = f"; behind by more, but not by more than chance explains: {len(chance)}" if chance else ""
    lines += ["", f"Within 10 % of the best: {len(near)} of {len(rows)}{others}."]
    text = path.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    path.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{after}")


if __name__ == "__main__":
    main()
