"""Runs that differ in their seed alone, taken together: means, and how far seeds spread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev

from ownpace.report.summary import Summary


@dataclass(frozen=True)
class SeedSpread:
    """The mean over several seeds."""

    mean: float
    deviation: float | None
    """Their standard deviation; one seed has none."""

    def shown(self, spec: str, unit: str = "") -> str:
        """For people to read.

        >>> SeedSpread(1.5, 0.25).shown(".2f", " s"), SeedSpread(0.9, None).shown(".1%")
        ('1.50 ± 0.25 s', '90.0%')
        """
        if self.deviation is None:
            return f"{self.mean:{spec}}{unit}"
        if spec.endswith("%"):  # the sign once
            return f"{self.mean:{spec}}".rstrip("%") + f" ± {self.deviation:{spec}}{unit}"
        return f"{self.mean:{spec}} ± {self.deviation:{spec}}{unit}"


@dataclass(frozen=True)
class RunGroup:
    """The runs of one algorithm on one engine, one for each seed."""

    algorithm: str
    engine: str
    runs: tuple[Summary, ...]

    def spread(self, of: Callable[[Summary], float | None]) -> SeedSpread | None:
        """Mean and spread of one figure; None if a run lacks it: a mean over the others would hide that."""
        values = [of(run) for run in self.runs]
        known = [value for value in values if value is not None]
        if not known or len(known) < len(values):
            return None
        return SeedSpread(fmean(known), stdev(known) if len(known) > 1 else None)

    @property
    def time_to_target(self) -> SeedSpread | None:
        """None: one of the runs did not reach it."""
        return self.spread(lambda run: run.time_to_target)

    def as_dict(self) -> dict[str, object]:
        """Ready for JSON."""
        figures: dict[str, Callable[[Summary], float | None]] = {
            "time_to_target": lambda run: run.time_to_target,
            "samples_per_s": lambda run: run.samples_per_s,
            "share_of_limit": lambda run: run.share_of_limit,
            "updates": lambda run: run.updates,
            "samples_per_update": lambda run: run.update_samples.mean,
            "staleness": lambda run: run.staleness.mean,
            "accuracy": lambda run: run.accuracy,
            "loss": lambda run: run.loss,
        }
        spreads = {name: self.spread(of) for name, of in figures.items()}
        return {
            "algorithm": self.algorithm,
            "engine": self.engine,
            "seeds": [run.seed for run in self.runs],
            **{name: None if spread is None else asdict(spread) for name, spread in spreads.items()},
        }


def grouped(summaries: Iterable[Summary]) -> list[RunGroup]:
    """Runs by algorithm and engine, in the order given."""
    groups: dict[tuple[str, str], list[Summary]] = {}
    for summary in summaries:
        groups.setdefault((summary.algorithm, summary.engine), []).append(summary)
    return [RunGroup(algorithm, engine, tuple(runs)) for (algorithm, engine), runs in groups.items()]


def fastest(groups: Sequence[RunGroup]) -> RunGroup | None:
    """Which reached the target first, if any did."""
    reached = [(time.mean, index) for index, group in enumerate(groups) if (time := group.time_to_target) is not None]
    return groups[min(reached)[1]] if reached else None
