"""What a friend would say of a run: one line for each thing that makes its figures mean less than they seem to."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ownpace.report.summary import Summary

FEW_UPDATES = 100
TOO_LARGE = 2.0
"""Times the samples that were asked for."""
OVERSHOT = 1.1
"""Times the budget."""
KEPT = 0.8
"""The share of the prescribed paces that a machine must keep."""
NEXT_TO_NOTHING = 0.02
"""Of all samples."""
NEAR = 0.01
"""Of the target: an accuracy so close to it is one or two evaluations away."""


def advice(summary: Summary, asked: int | None = None) -> list[str]:
    """One line for each thing to know.

    Args:
        summary: Of a run.
        asked: The samples of an update that were asked for, where an algorithm may take more.
    """
    if summary.reason != "finished":
        return []  # why it ended says more
    if not summary.updates:
        return ["no update was made, so nothing was learnt: its workers ended before the first, or never made a step"]
    # A pace that was not kept explains what follows, so it comes first.
    rules: list[Callable[[Summary, int | None], str | None]] = [_pace, _updates, _budget, _target, _shares]
    return [line for rule in rules if (line := rule(summary, asked)) is not None]


def said_once(lines: Iterable[tuple[str, str]]) -> list[str]:
    """Each line once, behind the names of all of whom it is said.

    >>> said_once([("sync", "slow"), ("pace", "late"), ("local", "slow")])
    ['sync, local: slow', 'pace: late']
    """
    names: dict[str, list[str]] = {}
    for name, line in lines:
        names.setdefault(line, []).append(name)
    return [f"{', '.join(who)}: {line}" for line, who in names.items()]


def _pace(run: Summary, asked: int | None) -> str | None:
    busy_s = {name: share * run.seconds for name, share in run.busy.items()}
    paces = [run.worker_samples.get(name, 0) / busy for name, busy in busy_s.items() if busy > 0]
    kept = sum(paces) / run.limit_samples_per_s if run.limit_samples_per_s else 1.0
    if kept >= KEPT or not run.worker_samples or len(paces) < len(busy_s):
        return None
    return (
        f"workers kept {kept:.0%} of the paces that the fleet prescribes: this machine is too busy, or too slow for "
        "them, and times say little; prescribe slower paces, or run fewer workers"
    )


def _updates(run: Summary, asked: int | None) -> str | None:
    mean = run.update_samples.mean
    if asked is None or mean <= TOO_LARGE * asked:
        return None
    how = f"updates had {mean:,.0f} samples on average, where {asked:,} were asked for"
    if run.updates < FEW_UPDATES and run.loss is not None:
        return (
            f"only {run.updates} updates: {how}, as sums are slow against computing; bound them (-p max_batch="
            f"{2 * asked}), or take an algorithm of few sums, such as diloco or stride"
        )
    return f"{how}, at the same learning rate; -p max_batch={2 * asked} bounds them"


def _budget(run: Summary, asked: int | None) -> str | None:
    if run.budget is None or run.samples <= OVERSHOT * run.budget:
        return None
    return (
        f"the last update went beyond the budget: {run.samples:,} samples instead of {run.budget:,}; "
        "take smaller updates, or a larger budget"
    )


def _target(run: Summary, asked: int | None) -> str | None:
    if run.time_to_target is not None:
        return None
    # Without the figures of this run, which stand beside it: of several runs, the same is said once.
    if run.target is not None and run.best_accuracy is not None:
        missing, goal = run.target - run.best_accuracy, f"{run.target:.1%}"
    elif run.target_loss is not None and run.loss is not None:
        missing = (run.loss - run.target_loss) / (run.target_loss or 1.0)  # a file may say 0
        goal = f"{run.target_loss:.3g}"
    else:
        return None
    if missing <= 0:
        return f"one evaluation met the target of {goal}, but no two in a row; train a little longer (--epochs)"
    if missing <= NEAR:
        return f"close to the target of {goal}, but not there; train a little longer (--epochs)"
    return (
        f"never near the target of {goal}; train longer (--epochs), try another learning rate (--lr), or "
        "choose another target"
    )


def _shares(run: Summary, asked: int | None) -> str | None:
    total, num = sum(run.worker_samples.values()), len(run.worker_samples)
    # Next to nothing of all samples, and far less than an equal share of them: of many workers, each does little.
    idle = [name for name, samples in run.worker_samples.items() if samples < 0.25 * total / max(1, num)]
    share = sum(run.worker_samples[name] for name in idle) / total if total else 1.0
    if not idle or share >= NEXT_TO_NOTHING:
        return None
    who = idle[0] if len(idle) == 1 else f"{len(idle)} workers ({idle[0]} …)"
    return f"{who} did {share:.1%} of the computing; `ownpace plan` says what the run would be without"
