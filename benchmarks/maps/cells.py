"""The cells of the map: a fleet for each, and who takes part."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from claims.at_best import Goal, Search
from claims.filling import Kept, best_s
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

MANY = 16
"""With more workers than that, runs are longer, and evaluated less often."""
MEAN_PACE = 2000.0
NUM_PARAMETERS = 101_770  # of the mlp for MNIST

BASE = Config(
    engine="virtual",
    task="mnist",
    model="mlp",
    momentum=0.9,
    eval_every=2000,
    samples=240_000,
    detail=False,
)
GOAL = Goal(level=0.95)


@dataclass(frozen=True)
class Entrant:
    """An algorithm as it takes part."""

    algorithm: str
    parameters: Mapping[str, Any]
    lr: float
    """Where the search for its learning rate begins, with 16 workers, if nothing is known of cells nearby."""
    power: float = 0.5
    """Of the number of workers, in how the best rate is taken to grow with it."""
    micro_batch: int | None = None

    def config(self, cell: Cell) -> Config:
        """Its run in a cell, but for learning rate and seed."""
        many = cell.num_workers > MANY
        return replace(
            BASE,
            algorithm=self.algorithm,
            parameters=dict(self.parameters),
            fleet=cell.fleet(),
            batch_size=cell.batch_size,
            micro_batch=None if self.micro_batch is None else min(self.micro_batch, cell.batch_size),
            # An update of all of them is as many samples as lie between two evaluations of few.
            eval_every=(2 if many else 1) * BASE.eval_every,
            samples=(4 if many else 1) * BASE.samples,
        )


# Small micro-batches for those that sum whenever they can: with them they learn faster (claims-details.md).
ENTRANTS: Mapping[str, Entrant] = {
    "balanced": Entrant("balanced", {}, 0.12),
    "pace": Entrant("pace", {}, 0.06, micro_batch=8),
    "stride": Entrant("stride", {}, 0.12),
    "wp": Entrant("wp", {}, 0.06),
    "local": Entrant("local", {}, 0.06, 0.0),
    "diloco": Entrant("diloco", {}, 0.03),
    "acco": Entrant("acco", {}, 0.12, micro_batch=8),
    "abs": Entrant("abs", {}, 0.03, 0.0, micro_batch=8),
    "sync": Entrant("sync", {}, 0.12),
    "sync-servers": Entrant("sync", {"via": "servers"}, 0.12),
    "layered": Entrant("layered", {}, 0.12),
    "od": Entrant("od", {"warmup": 50, "form": "all-reduce", "local_momentum": 0.9}, 0.12),
    "grouping": Entrant("grouping", {}, 0.06, 0.0),
    "grouping-layers": Entrant("grouping", {"by_layer": True}, 0.06, 0.0),
    "async": Entrant("async", {}, 0.002, -1.0),
    "async-layers": Entrant("async", {"by_layer": True}, 0.002, -1.0),
    "stale": Entrant("stale", {}, 0.002, -1.0),
}
"""Label → who takes part. Adding one is one line: in all cells that are known, it alone is searched."""


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

    @property
    def leaders(self) -> int:
        """By these, all others are cut off."""
        return 5

    def labels(self) -> Sequence[str]:
        """Everybody."""
        return tuple(ENTRANTS)

    def guess(self, label: str, known: Mapping[Any, Kept]) -> float:
        """The best rate of the cell that is most like this one, or what was given."""
        entrant = ENTRANTS[label]
        near = [(self._unlike(cell), cell, found[label]["lr"]) for cell, found in known.items() if label in found]
        _, cell, lr = min(near, key=lambda each: each[0], default=(0.0, Cell(16, 1, 0.1), entrant.lr))
        return float(lr * (self.num_workers / cell.num_workers) ** entrant.power)

    def find(self, label: str, known: Kept, guess: float, deadline: float) -> dict[str, Any]:
        """How soon one of them is at the target here, at its best rate."""
        search = Search(ENTRANTS[label].config(self), GOAL, best_s(known), deadline)
        return asdict(search.find(label, guess))

    def _unlike(self, other: Cell) -> float:
        """Learning rates depend most on workers and batch size, then on how long a sum takes."""
        return (
            abs(math.log(self.num_workers / other.num_workers))
            + abs(math.log(self.batch_size / other.batch_size))
            + 0.3 * abs(math.log(self.sum / other.sum))
            + 0.2 * abs(math.log(self.ratio / other.ratio))
        )


def cells() -> list[Cell]:
    """All of them: first a coarse grid over everything, then what lies between, then other batch sizes."""
    sums = (0.03, 0.3, 1.0, 3.0, 10.0)
    coarse = [*itertools.product((16, 4), (1, 2, 8), sums), *itertools.product((64,), (1, 8), sums)]
    between = itertools.product(NUM_WORKERS, RATIOS, SUMS)
    noisy = [Cell(*place, batch_size) for place in NOISY for batch_size in NOISE if batch_size != BATCH_SIZE]
    return list(dict.fromkeys([*(Cell(*place) for place in (*coarse, *between)), *noisy]))
