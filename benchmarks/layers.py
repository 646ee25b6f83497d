"""What layers on their own way bring, by the order of servers: predicted, and measured on processes.

    python benchmarks/layers.py                  in virtual time: exact, a few seconds
    python benchmarks/layers.py --processes      and on processes with these bandwidths prescribed: some minutes

Three servers with links of 4 : 2 : 1 share a model of twelve equal layers. All workers are one group of Grouping-SGD.
`load` is how long the slowest server's link takes for one update, there and back for all workers, in times of a
gradient: at 1, transferring takes as long as computing.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace

import torch
from torch import nn

from ownpace.algorithms.grouping import GroupingSgd
from ownpace.core.contract.events import Event
from ownpace.core.learning.task import Task, TensorSamples
from ownpace.engines import ENGINES, Job
from ownpace.fleet import Fleet, Machine, Network, ServerMachine
from ownpace.report import summarize
from table import print_table

LAYERS, WIDTH = 12, 64
BYTES = 4 * LAYERS * WIDTH * WIDTH
BATCH = 8
GRADIENT_S = 0.4
BANDWIDTHS = (4, 2, 1)
LOADS = (0.25, 0.5, 1.0, 2.0)


class AsNamed(GroupingSgd):
    """Grouping-SGD whose servers own the layers in the order in which the fleet names them."""

    fast_servers_first = False


@dataclass(frozen=True)
class EqualLayers(Task):
    """Layers that are all alike."""

    layers: int = LAYERS
    width: int = WIDTH

    def model(self) -> nn.Module:
        return nn.Sequential(*(nn.Linear(self.width, self.width, bias=False) for _ in range(self.layers)))

    def train_samples(self) -> TensorSamples:
        inputs = torch.randn(256, self.width, generator=torch.Generator().manual_seed(0))
        return TensorSamples(inputs, torch.zeros(256, dtype=torch.int64))

    def test_samples(self) -> TensorSamples:
        return self.train_samples()


@dataclass(frozen=True)
class Way:
    """One way of sending."""

    fast_first: bool
    by_layer: bool

    def __str__(self) -> str:
        order = "fast → slow" if self.fast_first else "slow → fast"
        return f"{order}, {'by layer' if self.by_layer else 'whole'}"


WAYS = [Way(fast_first, by_layer) for by_layer in (False, True) for fast_first in (False, True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", action="store_true", help="measure, too")
    parser.add_argument("--updates", type=int, default=25, help="of each run on processes")
    options = parser.parse_args()
    print("In virtual time, samples/s:\n")
    rows = []
    for workers in (1, 2, 4, 8):
        for load in LOADS:
            rates = {way: rate("virtual", way, workers, load, updates=60) for way in WAYS}
            rows.append(
                (
                    str(workers),
                    f"{load:g}",
                    *(f"{rates[way]:.1f}" for way in WAYS),
                    *gains(rates),
                )
            )
    print_table(("workers", "load", *map(str, WAYS), *GAINS), rows)
    if options.processes:
        print("\nOn processes with these links prescribed, against the prediction:\n")
        print_table(("workers", "load", "way", "predicted", "measured", "off"), compared(options.updates))


GAINS = ("fast → slow over slow → fast", "by layer over whole")


def gains(rates: dict[Way, float]) -> tuple[str, str]:
    """What the order of servers brings by layer, and what layers bring with the fast servers first."""
    best = rates[Way(fast_first=True, by_layer=True)]
    return (
        f"{best / rates[Way(fast_first=False, by_layer=True)]:.2f}",
        f"{best / rates[Way(fast_first=True, by_layer=False)]:.2f}",
    )


def compared(updates: int) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for workers, load in ((1, 1.0), (2, 1.0)):
        predicted = {way: rate("virtual", way, workers, load, updates) for way in WAYS}
        measured = {}
        for way in WAYS:
            print(f"{workers} workers, load {load:g}, {way} …", file=sys.stderr)
            measured[way] = rate("process", way, workers, load, updates)
        where = (str(workers), f"{load:g}")
        for way in WAYS:
            off = measured[way] / predicted[way] - 1
            rows.append((*where, str(way), f"{predicted[way]:.2f}", f"{measured[way]:.2f}", f"{off:+.1%}"))
        for name, before, after in zip(GAINS, gains(predicted), gains(measured), strict=True):
            rows.append((*where, name, before, after, f"{float(after) / float(before) - 1:+.1%}"))
    return rows


def rate(engine: str, way: Way, workers: int, load: float, updates: int) -> float:
    """Samples per second."""
    unit = 2 * workers * BYTES / len(BANDWIDTHS) / (load * GRADIENT_S)
    order = BANDWIDTHS if way.fast_first else BANDWIDTHS[::-1]
    fleet = Fleet(
        machine=(Machine(samples_per_s=BATCH / GRADIENT_S, count=workers),),
        network=Network(bandwidth_bytes_per_s=BANDWIDTHS[0] * unit, latency_s=1e-3, prescribed=True),
        server=tuple(ServerMachine(bandwidth_bytes_per_s=share * unit) for share in order),
    )
    groups = ",".join(map(str, range(workers)))
    job = Job(
        algorithm=AsNamed(groups=groups, by_layer=way.by_layer),
        task=EqualLayers(),
        fleet=fleet,
        batch_size=BATCH,
        samples=updates * BATCH * workers,
        eval_every=10**9,
        detail=False,
    )
    events: list[Event] = []
    ENGINES[engine](replace(job, timing_only=engine == "virtual"), events.append, None)
    summary = summarize(events)
    return summary.samples_per_s


if __name__ == "__main__":
    main()
