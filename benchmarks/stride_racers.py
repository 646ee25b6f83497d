"""Who takes part in the race of `stride.py`, and what each may try: learning rates, batch sizes, lengths."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ownpace import Config

BASE = Config(
    engine="virtual", task="mnist", model="mlp", momentum=0.9, schedule="cosine", eval_every=1500, detail=False
)
FLEETS = ("wan", "mild", "steep", "drift")
LENGTHS: Mapping[str, Sequence[int]] = {
    "wan": (48_000, 60_000, 90_000, 120_000),
    **dict.fromkeys(("mild", "steep", "drift"), (40_000, 80_000)),
}
SLOW_RATES = (0.0075, 0.01, 0.015, 0.025)
LOCAL_RATES = (0.015, 0.025, 0.04, 0.06, 0.1)
SUM_RATES = (0.03, 0.05, 0.08, 0.12, 0.2)
SMALL, LARGE = (16, 32), (32, 64)


@dataclass(frozen=True)
class Racer:
    """An algorithm as it takes part."""

    algorithm: str
    rates: Sequence[float]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    batch_sizes: Sequence[int] = (32,)
    micro_batch: int | None = None

    def configs(self, fleet: str) -> list[Config]:
        """Its runs, but for seeds."""
        return [
            replace(
                BASE,
                algorithm=self.algorithm,
                parameters=dict(self.parameters),
                fleet=fleet,
                lr=lr,
                samples=samples,
                batch_size=batch_size,
                micro_batch=self.micro_batch,
            )
            for lr, samples, batch_size in itertools.product(self.rates, LENGTHS[fleet], self.batch_sizes)
        ]


_PLAIN = {"outer_lr": 1.0, "outer_momentum": 0.0}
# Where sums are slow: small batches and low rates for `stride`, whose rounds have many steps; large batches for those
# that wait for each sum, and numbers of steps that were chosen for this network.
ON_SLOW: Mapping[str, Racer] = {
    "stride": Racer("stride", SLOW_RATES, batch_sizes=SMALL),
    "stride, pull 1": Racer("stride", SLOW_RATES, {"pull": 1.0}, SMALL),
    "stride, pull 1, plain outer step": Racer("stride", SLOW_RATES, {"pull": 1.0, "outer_momentum": 0.0}, (8, 16, 32)),
    "stride, pull 1, outer momentum 0.2": Racer("stride", SLOW_RATES, {"pull": 1.0, "outer_momentum": 0.2}, SMALL),
    "stride, pull 1, outer momentum 0.4": Racer("stride", SLOW_RATES, {"pull": 1.0, "outer_momentum": 0.4}, SMALL),
    "stride, pull 1, outer momentum 0.6": Racer("stride", SLOW_RATES, {"pull": 1.0, "outer_momentum": 0.6}, (16,)),
    "wp": Racer("wp", LOCAL_RATES, batch_sizes=LARGE),
    "wp, 64 steps": Racer("wp", LOCAL_RATES, {"steps": 64}, LARGE),
    "wp, 128 steps": Racer("wp", LOCAL_RATES, {"steps": 128}, SMALL),
    "diloco, plain outer step": Racer("diloco", LOCAL_RATES, _PLAIN, LARGE),
    "diloco, plain, 64 steps": Racer("diloco", LOCAL_RATES, {**_PLAIN, "steps": 64}, SMALL),
    "diloco, outer momentum 0.4": Racer("diloco", LOCAL_RATES, {"outer_lr": 1.0, "outer_momentum": 0.4}),
    "diloco": Racer("diloco", SLOW_RATES),
    "local": Racer("local", LOCAL_RATES),
    "local, 32 steps": Racer("local", LOCAL_RATES, {"steps": 32}),
    "local, 64 steps": Racer("local", LOCAL_RATES, {"steps": 64}),
}
ON_FAST: Mapping[str, Racer] = {
    "stride": Racer("stride", LOCAL_RATES, batch_sizes=SMALL),
    "pace": Racer("pace", SUM_RATES, batch_sizes=SMALL, micro_batch=8),
    "balanced": Racer("balanced", SUM_RATES, batch_sizes=SMALL),
    "local": Racer("local", LOCAL_RATES, batch_sizes=SMALL),
    "acco": Racer("acco", SUM_RATES, micro_batch=8),
    "cocod": Racer("cocod", LOCAL_RATES, batch_sizes=SMALL),
    "wp": Racer("wp", LOCAL_RATES),
    "diloco, plain, 8 steps": Racer("diloco", LOCAL_RATES, {**_PLAIN, "steps": 8}, SMALL),
    "diloco": Racer("diloco", LOCAL_RATES),
    "overlap-local": Racer("overlap-local", LOCAL_RATES),
    "abs": Racer("abs", SUM_RATES, micro_batch=8),
    "sync": Racer("sync", SUM_RATES),
    "pipe": Racer("pipe", SUM_RATES),
    "od": Racer("od", SUM_RATES),
    "grouping": Racer("grouping", SUM_RATES),
    "async": Racer("async", LOCAL_RATES),
}
TRANSFER_RATES = (0.0125, 0.025, 0.05, 0.1, 0.2)
TRANSFER: Mapping[str, tuple[str, str, int]] = {
    "`sync`, four alike": ("sync", "uniform", 128),
    "`stride`, four alike": ("stride", "uniform", 128),
    "`stride`, `mild`": ("stride", "mild", 96),
    "`stride`, `wan`": ("stride", "wan", 64),
    "`stride`, `steep`": ("stride", "steep", 60),
}
"""Algorithm, fleet, and the samples of one step of all workers: batch size · Σ v / v_max."""


def racers(fleet: str) -> Mapping[str, Racer]:
    """Who takes part on a fleet, what matters most first."""
    return ON_SLOW if fleet == "wan" else ON_FAST


def transfer(row: str) -> list[Config]:
    """Runs at each rate."""
    algorithm, fleet, _ = TRANSFER[row]
    base = replace(BASE, algorithm=algorithm, fleet=fleet, samples=72_000, batch_size=32)
    return [replace(base, lr=lr) for lr in TRANSFER_RATES]
