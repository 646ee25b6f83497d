"""Make the runs that show the claims, and write docs/results/claims.md: `make claims`."""

from __future__ import annotations

import argparse
import os

from claims import shown
from claims.race import run_races
from claims.running import KEPT, Runner
from ownpace.fleet import PRESETS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", default=list(PARTS), help=f"some of: {', '.join(PARTS)}")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--device", default="cpu", help="where gradients are computed: cpu or cuda")
    parser.add_argument("--no-page", action="store_true", help="only make the runs")
    options = parser.parse_args()
    runner = Runner(options.processes, options.device, KEPT)
    for name in options.what:
        PARTS[name](runner)
    if not options.no_page:
        from claims.page import write

        write(runner)


def grouping_mnist(runner: Runner) -> None:
    run_races([shown.grouping("mnist", 0.0)], runner, "Grouping-SGD, MNIST")
    run_races([shown.grouping("mnist", 0.9)], runner, "Grouping-SGD, MNIST, momentum")


def grouping_cifar(runner: Runner) -> None:
    run_races([shown.grouping("cifar10", momentum) for momentum in (0.0, 0.9)], runner, "Grouping-SGD, CIFAR-10")


def wp(runner: Runner) -> None:
    runs = [
        shown.wp(rule, steps, seed)
        for rule in ("exp", "equal", "count", "optimal")
        for steps in shown.WP_STEPS
        for seed in range(5)
    ]
    runner.run(runs, "WP-SGD")


def _od(task: str, runner: Runner) -> None:
    runs = [
        shown.od(task, ratio, way, lr)
        for ratio in shown.OD_RATIOS[task]
        for way in shown.OD_WAYS.values()
        for lr in shown.OD_LRS[task]
    ]
    runner.run(runs, f"OD-SGD, {task}")


def od_mnist(runner: Runner) -> None:
    _od("mnist", runner)


def od_cifar(runner: Runner) -> None:
    _od("cifar10", runner)


def layered(runner: Runner) -> None:
    runner.run(shown.layered_runs(), "Layered SGD")


def papers_mnist(runner: Runner) -> None:
    run_races([shown.papers_race("mnist", fleet) for fleet in shown.HEADLINE], runner, "ABS-SGD, MNIST")


def papers_cifar(runner: Runner) -> None:
    run_races([shown.papers_race("cifar10", fleet) for fleet in shown.HEADLINE], runner, "ABS-SGD, CIFAR-10")


def _everybody(optimizer: str, runner: Runner) -> None:
    for fleets in (shown.HEADLINE, shown.OTHER_FLEETS):
        races = [shown.everybody(fleet, optimizer) for fleet in fleets]
        run_races(races, runner, f"Pace-SGD, {optimizer}, {', '.join(fleets)}")


def pace_sgd(runner: Runner) -> None:
    _everybody("sgd", runner)


def pace_adamw(runner: Runner) -> None:
    _everybody("adamw", runner)


def pace_scheduled(runner: Runner) -> None:
    runner.run([c for fleet in shown.HEADLINE for c in shown.scheduled(fleet).every()], "Pace-SGD with a schedule")


def alpha(runner: Runner) -> None:
    races = [shown.alpha(fleet, size) for fleet in shown.ALPHA_FLEETS for size in shown.ALPHA_BATCHES]
    run_races(races, runner, "Pace-SGD, how to predict")


def limit(runner: Runner) -> None:
    runner.run([shown.limit(fleet, way) for fleet in PRESETS for way in ("abs", "pace")], "share of the limit")


def final(runner: Runner) -> None:
    for optimizer in ("sgd", "adamw"):
        runner.run(shown.final_runs("mnist", optimizer), f"final accuracy, {optimizer}")


PARTS = {
    "grouping-mnist": grouping_mnist,
    "wp": wp,
    "od-mnist": od_mnist,
    "layered": layered,
    "papers-mnist": papers_mnist,
    "pace-sgd": pace_sgd,
    "pace-adamw": pace_adamw,
    "pace-scheduled": pace_scheduled,
    "alpha": alpha,
    "grouping-cifar": grouping_cifar,
    "papers-cifar": papers_cifar,
    "od-cifar": od_cifar,
    "final": final,
    "limit": limit,
}

if __name__ == "__main__":
    main()
