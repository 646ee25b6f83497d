"""The cells of the map: a fleet for each, and who takes part."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ownpace import Config
from ownpace.fleet import Fleet, Machine, Network, ServerMachine

NUM_WORKERS = (4, 16, 64)
RATIOS = (1, 2, 4, 8)
"""Of the fastest machine's pace to the slowest's."""
SUMS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""How long the sum of all gradients takes, in batches of the mean machine."""
BATCH_SIZE = 32
NOISE = (8, 32, 128)
"""Batch sizes of the cells that are also tried with more and with less noise in a gradient."""
NOISY = tuple((16, ratio, sum_) for ratio in (1, 4) for sum_ in (0.1, 1.0))

MEAN_PACE = 2000.0
NUM_PARAMETERS = 101_770  # of the mlp for MNIST

BASE = Config(
    engine="virtual",
    task="mnist",
    model="mlp",
    momentum=0.9,
    target=0.96,
    stop_at_target=True,
    eval_every=2000,
    samples=240_000,
    detail=False,
)
LEVEL = 0.95
"""The accuracy whose time is taken. Runs go on to `target`: the mean of several evaluations is looked at."""


@dataclass(frozen=True)
class Entrant:
    """An algorithm as it takes part."""

    algorithm: str
    parameters: Mapping[str, Any]
    lr: float
    """Where the search for its learning rate begins, with four workers."""
    micro_batch: int | None = None

    def config(self, cell: Cell) -> Config:
        """Its run in a cell, but for learning rate and seed."""
        micro_batch = None if self.micro_batch is None else min(self.micro_batch, cell.batch_size)
        fleet, parameters = cell.fleet(), dict(self.parameters)
        return replace(
            BASE,
            algorithm=self.algorithm,
            parameters=parameters,
            fleet=fleet,
            batch_size=cell.batch_size,
            micro_batch=micro_batch,
        )


# Small micro-batches for those that sum whenever they can: with them they learn faster (claims-details.md).
ENTRANTS: Mapping[str, Entrant] = {
    "balanced": Entrant("balanced", {}, 0.12),
    "pace": Entrant("pace", {}, 0.05, micro_batch=8),
    "wp": Entrant("wp", {}, 0.05),
    "local": Entrant("local", {}, 0.05),
    "diloco": Entrant("diloco", {}, 0.05),
    "acco": Entrant("acco", {}, 0.05, micro_batch=8),
    "abs": Entrant("abs", {}, 0.02, micro_batch=8),
    "sync": Entrant("sync", {}, 0.12),
    "layered": Entrant("layered", {}, 0.12),
    "od": Entrant("od", {"warmup": 50, "form": "all-reduce", "local_momentum": 0.9}, 0.05),
    "grouping": Entrant("grouping", {}, 0.06),
    "async": Entrant("async", {}, 0.008),
    "stale": Entrant("stale", {}, 0.015),
}


@dataclass(frozen=True)
class Cell:
    """One place of the map."""

    num_workers: int
    ratio: float
    sum: float
    batch_size: int = BATCH_SIZE

    def fleet(self) -> Fleet:
        """A quarter of the machines at each of four paces, evenly spaced in logarithm; all sums of paces are equal.

        Servers are one machine with the bandwidth of all workers together, so they can take as much as a ring does.
        """
        paces = [self.ratio ** (step / 3) for step in range(4)]
        scale = 4 * MEAN_PACE / sum(paces)
        n, compute_s = self.num_workers, BATCH_SIZE / MEAN_PACE
        # A tenth of a sum is latency: then it matters everywhere, and nowhere more than bandwidth.
        latency_s = 0.1 * self.sum * compute_s / (2 * (n - 1))
        bandwidth = 2 * (n - 1) / n * 4 * NUM_PARAMETERS / (0.9 * self.sum * compute_s)
        return Fleet(
            machine=tuple(Machine(samples_per_s=scale * pace, count=n // 4, jitter=0.05) for pace in reversed(paces)),
            network=Network(bandwidth_bytes_per_s=bandwidth, latency_s=latency_s),
            server=(ServerMachine(bandwidth_bytes_per_s=n * bandwidth),),
        )


def cells() -> list[Cell]:
    """All of them, those with few workers first."""
    plain = [Cell(*place) for place in itertools.product(NUM_WORKERS, RATIOS, SUMS)]
    noisy = [Cell(*place, batch_size) for place in NOISY for batch_size in NOISE if batch_size != BATCH_SIZE]
    return plain + noisy
