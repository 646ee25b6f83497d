"""Where the headlines are tried: a paper, a fleet, a task; and who takes part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from claims import shown
from claims.at_best import Search
from claims.filling import Kept, best_s
from headlines import nets, told
from headlines.finals import FinalSearch, keep, objectives
from ownpace import Config
from ownpace.fleet import PRESETS, Between, Fleet, Machine, Network, ServerMachine


@dataclass(frozen=True)
class Way:
    """An algorithm as it takes part."""

    algorithm: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    lr: float = 0.1
    """Where its search begins with momentum 0.9, on MNIST; without momentum, at eight times as much."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Of the configuration: another batch size, say."""


SMALL = {"micro_batch": 8}
RING = {"form": "all-reduce"}
KNOWS = {"local_momentum": 0.9}
OD = {"warmup": 0.1}
WAYS: Mapping[str, Way] = {
    "sync": Way("sync", lr=0.06),
    "sync-servers": Way("sync", {"via": "servers"}, lr=0.06),
    "sync-8": Way("sync", lr=0.03, changes={"batch_size": 8}),
    "balanced": Way("balanced", lr=0.06),
    "layered": Way("layered", lr=0.06),
    "grouping": Way("grouping", lr=0.06),
    "grouping-layers": Way("grouping", {"by_layer": True}, lr=0.06),
    "async": Way("async", lr=0.008),
    "async-layers": Way("async", {"by_layer": True}, lr=0.008),
    "async-8": Way("async", lr=0.004, changes={"batch_size": 8}),
    "stale": Way("stale", lr=0.008),
    "stale-8": Way("stale", lr=0.004, changes={"batch_size": 8}),
    "abs": Way("abs", lr=0.016, changes=SMALL),
    "abs-32": Way("abs", lr=0.016),
    "pace": Way("pace", lr=0.03, changes=SMALL),
    "stride": Way("stride", lr=0.06),
    "od": Way("od", OD, lr=0.03),
    "od-momentum": Way("od", OD | KNOWS, lr=0.03),
    "od-ring": Way("od", OD | RING, lr=0.03),
    "od-ring-momentum": Way("od", OD | RING | KNOWS, lr=0.03),
}
"""Label → who takes part. `-8` and `-32` are batches (of `abs`, micro-batches) of so many samples."""
RIVALS = ("sync", "sync-servers", "async", "stale")
WHO: Mapping[str, Sequence[str]] = {
    "grouping": (*RIVALS[:3], "grouping", "grouping-layers", "async-layers", "stale"),
    "abs": ("sync", "abs", "async", "stale", "sync-servers", "balanced", "pace", "abs-32"),
    "abs, small batches": ("async-8", "sync-8", "stale-8"),
    "od": ("sync", "sync-servers", "async", "od", "od-momentum", "od-ring", "od-ring-momentum"),
    "layered": ("sync", "sync-servers", "layered"),
    "wp": ("exp", "equal", "count", "optimal"),
    "abs, ResNets": ("sync", "abs", "async", "stale"),
    "abs, ResNets, ours": ("stride", "balanced", "pace"),
}

MNIST = replace(shown.MNIST, target=None, stop_at_target=False, samples=480_000, seconds=None, eval_every=3000)
CIFAR = replace(shown.CIFAR, target=None, stop_at_target=False, samples=300_000, seconds=None, eval_every=5000)
OD_SAMPLES = {"mnist": 120_000, "cifar10": 100_000}
RESNET_LRS = {"stride": 0.06, "abs": 0.06, "async": 0.03, "stale": 0.03}


@dataclass(frozen=True)
class Headline:
    """One comparison."""

    paper: str
    """And, for some, which part of the comparison: a key of WHO."""
    fleet: str
    task: str
    momentum: float = 0.9
    net: str = ""
    """Other than the task's usual one."""

    @property
    def leaders(self) -> int:
        """How many have to be known before all others can be searched at once: they cut them off."""
        return 0 if self.final else 3 if self.model == "mlp" else 1

    @property
    def final(self) -> bool:
        """Whether final accuracies are compared, and not times to one."""
        return self.paper == "od"

    @property
    def model(self) -> str:
        """Of the nets that are trained."""
        return self.net or {"mnist": "mlp", "cifar10": "lenet", "a9a": "linear"}[self.task]

    def labels(self) -> Sequence[str]:
        """Who takes part."""
        return WHO[self.paper]

    def config(self, label: str) -> Config:
        """The run of one of them, but for learning rate and seed."""
        way = WAYS[label]
        base, device = self._base(), told.device()
        changes, machines = dict(way.changes), fleet(self.fleet, self.model)
        if len(machines.server) > 1:  # each has a part of the gradient, and cannot tell its length
            changes["clip_norm"] = None
        if self.task == "cifar10":
            changes |= nets.changes(self.model, label, device, base.precision)
        return replace(
            base,
            algorithm=way.algorithm,
            parameters=dict(way.parameters),
            fleet=machines,
            momentum=self.momentum,
            device=device,
            **changes,
        )

    def guess(self, label: str, known: Mapping[Any, Kept]) -> float:
        """The best rate in the most similar of the places known, or what was given."""
        near = [
            (self._unlike(place), found[label]["lr"])
            for place, found in known.items()
            if label in found and (place.task, place.final) == (self.task, self.final)
        ]
        near = [(unlike, lr) for unlike, lr in near if unlike < 10]
        if near:
            return float(min(near)[1])
        if self.paper == "wp":
            return 0.05  # part of the setting: the weights are made of it
        lr = WAYS[label].lr
        if self.model in nets.RESNETS:
            lr = RESNET_LRS.get(label, 0.12)
        return lr * (1 if self.momentum else 8)

    def find(self, label: str, known: Kept, guess: float, deadline: float) -> dict[str, Any]:
        """What becomes of one of them here."""
        if self.paper == "wp":
            return asdict(objectives(label, int(self.fleet.removeprefix("T = ")), deadline))
        if self.final:
            return asdict(FinalSearch(self.config(label), deadline).find(label, guess))
        search = Search(self.config(label), nets.GOALS[self.model], best_s(known), deadline, keep)
        return asdict(search.find(label, guess))

    def _unlike(self, other: Headline) -> int:
        return 20 * (self.model != other.model or self.momentum != other.momentum) + (self.paper != other.paper)

    def _base(self) -> Config:
        base = MNIST if self.task == "mnist" else nets.recipe(CIFAR, self.model, self.momentum)
        if self.paper == "od":
            samples = OD_SAMPLES[self.task]
            base = replace(base, schedule="cosine", samples=samples, eval_every=samples // 10)
        return base


def fleet(name: str, net: str) -> Fleet:
    """Fleets by what they are called here."""
    if name.startswith("classes"):
        bandwidth = {"classes": 1.25e9, "classes, 1 Gbit/s": 1.25e8}[name]
        return replace(shown.three_classes(), network=Network(bandwidth_bytes_per_s=bandwidth, latency_s=5e-5))
    if name.startswith("sum "):
        return shown.equal_workers(float(name.removeprefix("sum ")), nets.NBYTES[net], nets.BATCHES[net])
    if name == "sites":
        return sites()
    if name.endswith(FAST):
        machines = PRESETS[name.removesuffix(FAST)][1]
        return replace(machines, network=Network(bandwidth_bytes_per_s=25e9 / 8, latency_s=5e-5))
    return PRESETS[name][1]


def sites() -> Fleet:
    """Four sites of four equal machines, 1 Gbit/s inside and a tenth between; loading takes half of computing."""
    between = Between(bandwidth_bytes_per_s=1.25e7, latency_s=1e-3)
    machine = {"samples_per_s": 2000, "io_s_per_sample": 0.5 / 2000, "count": 4, "jitter": 0.05}
    return Fleet(
        machine=tuple(Machine(site=site, **machine) for site in "abcd"),
        network=Network(bandwidth_bytes_per_s=1.25e8, latency_s=5e-5, between=between),
        server=tuple(ServerMachine(site=site) for site in "abcd"),
    )


CLUSTERS = ("mild", "steep", "drift")
FAST = ", 25 Gbit/s"
"""ResNet-18 has 45 MB: over the presets' 1 Gbit/s, a sum would take as long as ten batches and more."""


def places() -> list[Headline]:
    """All of them, those first that take little, or that most depends on."""
    return [
        *(Headline("od", f"sum {ratio}", "mnist") for ratio in (0.7, 0.3, 1.5)),
        *(Headline("grouping", "classes, 1 Gbit/s", "mnist", momentum) for momentum in (0.9, 0.0)),
        *(Headline("grouping", "classes", "mnist", momentum) for momentum in (0.9, 0.0)),
        Headline("layered", "sites", "mnist"),
        *(Headline("abs", name, "mnist", momentum) for momentum in (0.9, 0.0) for name in CLUSTERS),
        *(Headline("abs, small batches", name, "mnist", 0.0) for name in CLUSTERS),
        *(Headline("wp", f"T = {steps}", "a9a", 0.0) for steps in shown.WP_STEPS),
        *(Headline("grouping", "classes", "cifar10", momentum) for momentum in (0.9, 0.0)),
        Headline("od", "sum 0.7", "cifar10"),
        Headline("layered", "sites", "cifar10"),
        *(Headline("abs", name, "cifar10", 0.0) for name in CLUSTERS),
        *resnets("resnet18", FAST),
        *resnets("resnet20", ""),
        *(Headline("grouping", "classes", "cifar10", momentum, "resnet20") for momentum in (0.9, 0.0)),
        Headline("od", "sum 0.7", "cifar10", net="resnet20"),
        Headline("layered", "sites", "cifar10", net="resnet20"),
    ]


def resnets(net: str, links: str) -> list[Headline]:
    """ABS-SGD's headline on a ResNet, without and with momentum; then what else we have."""
    return [
        *(
            Headline("abs, ResNets", name + links, "cifar10", momentum, net)
            for momentum in (0.0, 0.9)
            for name in CLUSTERS
        ),
        *(Headline("abs, ResNets, ours", name + links, "cifar10", 0.9, net) for name in CLUSTERS),
    ]
