"""Local steps that do not wait, in a race with schedules: seconds of virtual time to an accuracy, each at its best.

    OWNPACE_DATA=… python benchmarks/stride.py --processes 16 > page.md

MNIST, the MLP with 101,770 parameters, momentum 0.9, cosine. Every algorithm runs once with each of several learning
rates, batch sizes and lengths of its schedule; the best of these at each level run with more seeds, and a cell is the
least mean time over all seeds. What was run is kept (`--kept`), and not run again: a race that was stopped, or ran out
of `--seconds`, goes on where it was. Who takes part is in `stride_racers.py`.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from claims.running import HERE, Outcome, Runner, with_seeds
from ownpace import Config
from stride_racers import FLEETS, TRANSFER, TRANSFER_RATES, racers, transfer

LEVELS = (0.95, 0.96, 0.97)
SMOOTH = 3
"""An accuracy is reached when this many evaluations in a row have it on average."""
TRIED_AGAIN = 3
"""At each level, this many of an algorithm's settings run with more seeds."""
ALONE = ("wp", "local", "diloco")
"""What `stride` is to beat where communication dominates."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=1, help="runs at once")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no run after this many")
    parser.add_argument("--kept", type=Path, default=HERE / "runs" / "stride.jsonl", help="what was run")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--fleets", default=",".join(FLEETS))
    options = parser.parse_args()
    runner = Runner(options.processes, "cpu", options.kept, options.seconds)
    fleets, seeds = [fleet for fleet in options.fleets.split(",") if fleet], range(options.seeds)
    again: list[Config] = []
    for fleet in fleets:
        # With the first runs on the next fleet: no process idles while the last of a stage end.
        first = [config for racer in racers(fleet).values() for config in racer.configs(fleet)]
        runner.run([*again, *first], fleet)
        again = list(more_seeds(runner, fleet, seeds))
    runner.run(
        [*again, *(run for row in TRANSFER for config in transfer(row) for run in with_seeds(config, seeds))], "end"
    )
    print_page(runner, fleets, seeds)
    print_transfer(runner, seeds)


def more_seeds(runner: Runner, fleet: str, seeds: Sequence[int]) -> Iterator[Config]:
    """The best settings of each algorithm with all seeds but the first."""
    for racer in racers(fleet).values():
        chosen = [config for level in LEVELS for config in quickest(runner, racer.configs(fleet), level)]
        # By their text: configurations have mappings in them.
        for config in {repr(each): each for each in chosen}.values():
            yield from with_seeds(config, seeds[1:])


def quickest(runner: Runner, configs: Sequence[Config], level: float) -> list[Config]:
    """Of runs with the first seed, those that got there soonest."""
    times = [(time, number) for number, config in enumerate(configs) if (time := reached(runner, config, level))]
    return [configs[number] for _, number in sorted(times)[:TRIED_AGAIN]]


def reached(runner: Runner, config: Config, level: float) -> float | None:
    """Seconds to a level; None: it was not reached, or not run."""
    outcome = runner.known(config)
    return None if outcome is None else reached_s(outcome, level)


def reached_s(outcome: Outcome, level: float) -> float | None:
    """Seconds until the mean of some evaluations was at the level; between two of them, on a straight line."""
    points = [(t, score) for t, _, score, _ in outcome.curve if t is not None and score is not None]
    before_s, before = 0.0, 0.0
    t: float
    for end in range(1, len(points) + 1):
        mean = statistics.mean(score for _, score in points[max(0, end - SMOOTH) : end])
        t = points[end - 1][0]
        if mean >= level:
            return before_s + (t - before_s) * (level - before) / (mean - before)
        before_s, before = t, mean
    return None


def print_page(runner: Runner, fleets: Sequence[str], seeds: Sequence[int]) -> None:
    """All tables, as Markdown."""
    print("# Local steps that do not wait\n")
    print(
        "Seconds of virtual time until the test accuracy of MNIST's MLP was reached (mean of three evaluations), with\n"
        "momentum 0.9 and a cosine schedule. Each algorithm is at the best of several learning rates, batch sizes and\n"
        f"lengths of its schedule: the best {TRIED_AGAIN} with the first seed at each level were run with {len(seeds)} "
        "seeds, and\nthe best mean is shown, with the least and the largest. *Of the limit*: samples per second, over\n"
        "the sum of all machines'. Made by `python benchmarks/stride.py`; `benchmarks/stride_racers.py` says what was\n"
        "tried.\n"
    )
    for fleet in fleets:
        print(f"## `{fleet}`\n\n{heading()}")
        times = {
            name: [best(runner, racer.configs(fleet), seeds, level) for level in LEVELS]
            for name, racer in racers(fleet).items()
        }
        for name, found in times.items():
            print(f"| {name} | {' | '.join(shown(each) for each in found)} | {limit(runner, found)} |")
        print(f"\n{verdict(times)}\n")


def heading() -> str:
    levels = " | ".join(f"{level:.0%}" for level in LEVELS)
    return f"| algorithm | {levels} | of the limit |\n|---|{'---|' * (len(LEVELS) + 1)}"


Found = tuple[list[float], Config] | None
"""A time for each seed, and how."""


def best(runner: Runner, configs: Sequence[Config], seeds: Sequence[int], level: float) -> Found:
    """The least mean time over seeds, and how; None: no setting got there with every seed."""
    found: Found = None
    for config in configs:
        times = [reached(runner, run, level) for run in with_seeds(config, seeds)]
        known = [time for time in times if time is not None]
        if len(known) == len(times) and (found is None or statistics.mean(known) < statistics.mean(found[0])):
            found = known, config
    return found


def shown(found: Found) -> str:
    if found is None:
        return "–"
    times, config = found
    spread = "" if len(times) == 1 else f", {min(times):.2f} to {max(times):.2f}"
    return (
        f"{statistics.mean(times):.2f}{spread} "
        f"(lr {config.lr:g}, batch {config.batch_size}, {(config.samples or 0) // 1000}k)"
    )


def limit(runner: Runner, found: Sequence[Found]) -> str:
    """Of the run at the highest level that was reached."""
    reached_ = [each for each in found if each is not None]
    outcome = runner.known(reached_[-1][1]) if reached_ else None
    return "–" if outcome is None else f"{outcome.share_of_limit:.2f}"


def verdict(times: Mapping[str, Sequence[Found]]) -> str:
    """How much sooner than the best others: with the settings that it has by default, and at its best."""

    def least(names: Sequence[str], index: int) -> float:
        found = [each for name in names if (each := times[name][index]) is not None]
        return min((statistics.mean(each[0]) for each in found), default=math.inf)

    alone = [name for name in times if name.split(",")[0] in ALONE]
    others = [name for name in times if not name.startswith("stride")]
    lines = []
    for ours in (["stride"], [name for name in times if name.startswith("stride")]):
        for rivals, what in ((alone, "wp, local, diloco"), (others, "all others")):
            leads = [least(rivals, index) / least(ours, index) for index in range(len(LEVELS))]
            cells = ", ".join("–" if not math.isfinite(lead) else f"{lead:.2f}" for lead in leads)
            lines.append(f"- `stride`{' at its best' if len(ours) > 1 else ''} against the best of {what}: {cells}")
    return "Times as fast to each level:\n\n" + "\n".join(dict.fromkeys(lines))


def print_transfer(runner: Runner, seeds: Sequence[int]) -> None:
    """Which learning rate goes with which fleet."""
    print("## Which learning rate\n\nFinal accuracy after 72,000 samples, batches of 32:\n")
    print(f"| | samples of a step of all | {' | '.join(f'lr {lr:g}' for lr in TRANSFER_RATES)} |")
    print(f"|---|---|{'---|' * len(TRANSFER_RATES)}")
    for row, (_, _, samples) in TRANSFER.items():
        ends = [final(runner, with_seeds(each, seeds)) for each in transfer(row)]
        most = max((end for end in ends if end is not None), default=None)
        cells = ["–" if end is None else f"**{end:.1%}**" if end == most else f"{end:.1%}" for end in ends]
        print(f"| {row} | {samples} | {' | '.join(cells)} |")


def final(runner: Runner, runs: Sequence[Config]) -> float | None:
    """The mean accuracy at the end; None: some were not run."""
    known = [outcome for run in runs if (outcome := runner.known(run)) is not None]
    return statistics.mean(outcome.final(3) for outcome in known) if len(known) == len(runs) else None


if __name__ == "__main__":
    main()
