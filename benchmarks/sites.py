"""Layered SGD where it was made for: fast links inside a site, slow ones between; timing alone, to 256 workers.

    python benchmarks/sites.py

Prints the tables of docs/results/sites.md and draws docs/images/sites.png. The net has the parameters of a ResNet-50, a
batch of 64 takes a worker 0.25 s and loading it 0.1 s, links inside a site carry 10 GB/s. Nothing here is measured: it
is what the virtual engine computes, the same on every machine.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

from ownpace import make_algorithm
from ownpace.core.contract.events import Event, Transfer, Update
from ownpace.core.learning.task import Task, TensorSamples
from ownpace.fleet import Between, Fleet, Machine, Network, ServerMachine
from ownpace.testing import simulate
from table import print_table

IMAGE = Path(__file__).parent.parent / "docs/images/sites.png"
SCALE = 100
"""By so much the net and all bandwidths are smaller than said: times are the same, and less memory is moved."""
PARAMETERS, LAYERS = 25_557_032 // SCALE, 64
BATCH, COMPUTE_S, LOAD_S = 64, 0.25, 0.1
INSIDE_BYTES_PER_S, INSIDE_LATENCY_S = 1e10 / SCALE, 1e-5
RATIOS = (1, 10, 100)
SITES = (1, 2, 4, 8, 16, 32, 64)
PER_SITE = 4
WAYS = {
    "flat ring": ("sync", {}),
    "layered": ("layered", {}),
    "servers": ("sync", {"via": "servers"}),
}


@dataclass(frozen=True)
class Sized(Task):
    """Nothing but parameters, in equal layers."""

    def model(self) -> nn.Module:
        sizes = [PARAMETERS // LAYERS + (i < PARAMETERS % LAYERS) for i in range(LAYERS)]
        return nn.ParameterList(nn.Parameter(torch.zeros(size)) for size in sizes)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        raise NotImplementedError

    def train_samples(self) -> TensorSamples:
        return TensorSamples(torch.zeros(1000, 1), torch.zeros(1000))

    def test_samples(self) -> TensorSamples:
        return self.train_samples()


def fleet(sites: int, per_site: int, ratio: int, load_s: float) -> Fleet:
    between = Between(bandwidth_bytes_per_s=INSIDE_BYTES_PER_S / ratio, latency_s=0.0 if ratio == 1 else 1e-4)
    machine = {"samples_per_s": BATCH / COMPUTE_S, "io_s_per_sample": load_s / BATCH, "count": per_site}
    return Fleet(
        machine=tuple(Machine(site=f"{i}", **machine) for i in range(sites)),
        network=Network(bandwidth_bytes_per_s=INSIDE_BYTES_PER_S, latency_s=INSIDE_LATENCY_S, between=between),
        server=tuple(ServerMachine(site=f"{i}") for i in range(sites)),
    )


def run(way: str, machines: Fleet) -> tuple[float, list[Event]]:
    """The time from one update to the next, and all events."""
    name, parameters = WAYS[way]
    if name == "layered" and len({worker.machine.site for worker in machines.workers}) == 1:
        parameters = {"groups": 1}
    samples = 4 * BATCH * len(machines.workers)
    _, events = simulate(
        make_algorithm(name, parameters), machines, task=Sized(), samples=samples, batch_size=BATCH, timing_only=True
    )
    times = [event.t for event in events if isinstance(event, Update) and event.who in ("server-0", "worker-0")]
    return statistics.median(b - a for a, b in itertools.pairwise(times)), events


def efficiency(way: str, sites: int, per_site: int, ratio: int, load_s: float) -> float:
    """The share of what all workers would compute if they did nothing else."""
    return COMPUTE_S / run(way, fleet(sites, per_site, ratio, load_s))[0]


def curves(load_s: float, layouts: list[tuple[int, int]], ways: Iterable[str]) -> list[list[str]]:
    return [
        [str(ratio), way, *(f"{efficiency(way, sites, each, ratio, load_s):.2f}" for sites, each in layouts)]
        for ratio in RATIOS
        for way in ways
    ]


def takes_s(events: list[Event], what: str, group: str) -> float:
    return next(e.until - e.t for e in events if isinstance(e, Transfer) and e.what == what and e.who == group)


def hidden() -> list[list[str]]:
    """In the paper's terms, for 64 sites of four."""
    rows = []
    for ratio in RATIOS:
        machines = fleet(64, PER_SITE, ratio, LOAD_S)
        flat_s, flat = run("flat ring", machines)
        period_s, events = run("layered", machines)
        among = takes_s(events, "all-reduce", "communicators")
        inside = takes_s(events, "reduce", "subgroup-0"), takes_s(events, "broadcast", "subgroup-0")
        figures = [
            takes_s(flat, "all-reduce", "workers"),
            flat_s,
            inside[0],
            among,
            min(among, LOAD_S),
            max(0.0, among - LOAD_S),
            inside[1],
            period_s,
        ]
        rows.append([str(ratio), *(f"{1000 * figure:,.0f}" for figure in figures)])
    return rows


def draw(rows: list[list[str]]) -> None:
    figure, axes = plt.subplots(1, len(RATIOS), figsize=(10, 3.2), sharey=True, layout="constrained")
    for axis, ratio in zip(axes, RATIOS, strict=True):
        for row in (row for row in rows if row[0] == str(ratio)):
            axis.plot([PER_SITE * sites for sites in SITES], [float(cell) for cell in row[2:]], "o-", label=row[1])
        axis.set(title=f"between: 1/{ratio} of inside", xlabel="workers, four at a site", xscale="log", ylim=(0, 1))
        axis.set_xticks([PER_SITE * sites for sites in SITES], [str(PER_SITE * sites) for sites in SITES])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("efficiency")
    axes[-1].legend()
    figure.savefig(IMAGE, dpi=120)


def main() -> None:
    growing = [(sites, PER_SITE) for sites in SITES]
    rings = ("flat ring", "layered")
    rows = curves(LOAD_S, growing, WAYS)
    draw(rows)
    heads = ["between", "way", *(str(PER_SITE * sites) for sites in SITES)]
    print("Four workers at a site, loading 0.1 s\n")
    print_table(heads, rows)
    print("\nFour workers at a site, nothing to load\n")
    print_table(heads, curves(0.0, growing, rings))
    print("\n256 workers, by number of sites\n")
    print_table(["between", "way", *map(str, SITES)], curves(LOAD_S, [(sites, 256 // sites) for sites in SITES], rings))
    print("\n64 sites of four, ms\n")
    heads = [
        "between",
        "t_AR(N)",
        "period, flat",
        "t_reduce",
        "t_AR(G)",
        "hidden",
        "left",
        "t_bcast",
        "period, layered",
    ]
    print_table(heads, hidden())


if __name__ == "__main__":
    main()
