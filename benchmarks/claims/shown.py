"""The claims, each with the runs that show it or do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from claims.race import Race, ScheduledRace, Way
from claims.running import Runner
from ownpace import Config
from ownpace.fleet import Fleet, Machine, Network, ServerMachine

FAST_NETWORK = Network(bandwidth_bytes_per_s=1.25e9, latency_s=5e-5)
BASE = Config(
    engine="virtual", batch_size=32, momentum=0.9, stop_at_target=True, detail=False, samples=600_000, seconds=120.0
)
MNIST = replace(BASE, task="mnist", model="mlp", target=0.97, eval_every=3000, samples=240_000)
CIFAR = replace(BASE, task="cifar10", model="lenet", target=0.58, eval_every=5000, samples=300_000)
TASKS = {"mnist": MNIST, "cifar10": CIFAR}
LEVELS = {"mnist": (0.96, 0.97), "cifar10": (0.55, 0.58)}
ADAMW_LRS = (0.001, 0.003)


def three_classes() -> Fleet:
    """12 workers: two four times as fast, four twice as fast, six at pace 1; three servers, 10 Gbit/s."""
    classes = ((4000, 2), (2000, 4), (1000, 6))
    return Fleet(
        machine=tuple(Machine(samples_per_s=pace, count=count, jitter=0.05) for pace, count in classes),
        network=FAST_NETWORK,
        server=(ServerMachine(),) * 3,
    )


def grouping(task: str, momentum: float) -> Race:
    """Grouping-SGD against what its paper compares it with."""
    ways: dict[str, Way] = {
        "grouping": ("grouping", {}),
        "grouping, p = ½": ("grouping", {"staleness_power": 0.5}),
        "sync": ("sync", {}),
        "async": ("async", {}),
        "stale": ("stale", {}),
    }
    base = replace(TASKS[task], momentum=momentum)
    lrs, low = {
        ("mnist", 0.0): ((0.1, 0.2, 0.4), (0.02, 0.05, 0.1)),
        ("mnist", 0.9): ((0.02, 0.05, 0.1), (0.003, 0.01, 0.02)),
        ("cifar10", 0.0): ((0.1, 0.2, 0.4), (0.01, 0.02, 0.05)),
        ("cifar10", 0.9): ((0.003, 0.01, 0.02, 0.05, 0.1), (0.0003, 0.001, 0.003, 0.01)),
    }[task, momentum]
    if task == "cifar10":
        del ways["grouping, p = ½"]
    name = f"Grouping-SGD, {task}, μ = {momentum:g}"
    seeds = (0, 1, 2) if (task, momentum) == ("cifar10", 0.9) else (0,)
    return Race(name, three_classes(), base, ways, lrs, seeds, {"async": low, "stale": low}, levels=LEVELS[task])


UNBOUNDED = {"max_batch": 0}
"""For pace: its figures were taken before updates were bounded. Computing never idles, however long a sum takes."""
WAYS: Mapping[str, Way] = {
    "pace": ("pace", UNBOUNDED),
    **{
        name: (name, {})
        for name in (
            "abs", "sync", "balanced", "acco", "pipe", "layered", "grouping", "async", "stale", "dc-async",
            "staleness-aware", "backup", "local", "diloco", "wp",
        )
    },
    "od": ("od", {"warmup": 50, "form": "all-reduce"}),
    "acco, equal-time": ("acco", {"micro": "equal-time"}),
    "pace, share": ("pace", {"predict": "share", **UNBOUNDED}),
}  # fmt: skip
OURS = ("pace", "pace, share")
BESIDE = ("acco, equal-time",)
"""Shown, but not among the others: ACCO's idea with our micro-batches."""
HEADLINE = ("mild", "steep", "drift")
OTHER_FLEETS = ("uniform", "wan")
_FEW = ("pace", "abs", "sync", "balanced", "acco", "pipe", "local", "diloco", "wp", "od", "acco, equal-time")


def everybody(fleet: str, optimizer: str) -> Race:
    """All algorithms on the presets of the headline, those that came in first on the others; MNIST."""
    base, lrs, low = MNIST, (0.02, 0.05, 0.1), (0.003, 0.01)
    ways = dict(WAYS)
    if optimizer == "adamw":
        base = replace(base, optimizer="adamw", momentum=0.0)
        lrs, low = ADAMW_LRS, (0.0005, 0.001)
    if fleet not in HEADLINE:
        ways = {label: ways[label] for label in _FEW}
    own = dict.fromkeys(("async", "stale", "dc-async", "staleness-aware", "abs", "pipe"), (*low, lrs[0]))
    if optimizer == "sgd":  # who is ahead gets a finer grid
        own |= dict.fromkeys(("pace", "balanced", "acco", "acco, equal-time", "sync"), (0.02, 0.03, 0.05, 0.1))
    return Race(f"{fleet}, mnist, {optimizer}", fleet, base, ways, lrs, (0, 1), own, levels=LEVELS["mnist"])


FINE_PACE = "pace, micro-batches of 8"


def scheduled(fleet: str) -> ScheduledRace:
    """Those that come in first, each with a schedule that ends with the run; MNIST, SGD with momentum."""
    labels = ("pace", "wp", "acco", "acco, equal-time", "balanced")
    fine = {f"{label}, micro-batches of 8": WAYS[label] for label in ("pace", "acco", "acco, equal-time")}
    return ScheduledRace(
        f"{fleet}: accuracy after this many samples",
        fleet,
        replace(MNIST, target=None, stop_at_target=False, seconds=None),
        {label: WAYS[label] for label in labels} | fine,
        lengths=(40_000, 70_000, 120_000),
        lrs=(0.05, 0.1, 0.2),
        seeds=(0, 1),
        levels=(0.965, 0.97),
        lrs_of={"wp": (0.02, 0.05, 0.1)},
        micro_batches=dict.fromkeys(fine, 8),
    )


DIGITS = replace(BASE, task="digits", target=0.95, eval_every=500, samples=60_000, seconds=None)
ALPHA_FLEETS = ("uniform", "mild", "steep", "drift")
ALPHA_BATCHES = (2, 8, 32)


def alpha(fleet: str, batch_size: int) -> Race:
    """How Pace-SGD should predict: over fleets, and over noise, which smaller batches have more of."""
    ways: dict[str, Way] = {
        predict: ("pace", {"predict": predict, **UNBOUNDED}) for predict in ("own", "share", "none")
    }
    base = replace(DIGITS, batch_size=batch_size)
    lrs = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
    return Race(f"{fleet}, batch {batch_size}", fleet, base, ways, lrs, (0, 1, 2), levels=(0.93, 0.95))


FINE_ABS = "abs, micro-batches of 8"


def papers_race(task: str, fleet: str) -> Race:
    """ABS-SGD against what its paper compares it with, without momentum."""
    ways = {label: WAYS[label] for label in ("abs", "sync", "async", "stale", "pace", "balanced")}
    ways |= {"abs, equal-time": ("abs", {"micro": "equal-time"}), FINE_ABS: ("abs", {})}
    lrs: Sequence[float] = (0.1, 0.2, 0.4)
    own: dict[str, Sequence[float]] = dict.fromkeys(("async", "stale"), (0.05, 0.1, 0.2))
    base, levels = replace(TASKS[task], momentum=0.0), LEVELS[task]
    if task == "cifar10":
        ways = {label: ways[label] for label in (FINE_ABS, "sync", "async", "stale")}
        lrs, own = (0.1, 0.2), {"sync": (0.2,), "async": (0.05,), "stale": (0.05,)}
        base, levels = replace(base, target=levels[0]), levels[:1]
    name = f"{fleet}, {task}, no momentum"
    return Race(name, fleet, base, ways, lrs, (0, 1), own, {FINE_ABS: 8}, levels)


def to_the_end(task: str, fleet: str, algorithm: str, lr: float, optimizer: str = "sgd", seed: int = 0) -> Config:
    """A run of fixed length with a cosine schedule: how good does it get?"""
    samples = {"mnist": 360_000, "cifar10": 400_000}[task]
    return replace(
        TASKS[task],
        fleet=fleet,
        algorithm=algorithm,
        parameters=dict(UNBOUNDED) if algorithm == "pace" else {},
        lr=lr,
        optimizer=optimizer,
        momentum=0.9 if optimizer == "sgd" else 0.0,
        schedule="cosine",
        warmup_samples=samples // 20,
        samples=samples,
        seconds=None,
        stop_at_target=False,
        eval_every=samples // 20,
        seed=seed,
    )


FINAL_LRS = {
    ("mnist", "sgd"): (0.05,),
    ("mnist", "adamw"): (0.002,),
}
FINAL_SEEDS = (0, 1)


NBYTES = {"mnist": 4 * 101_770, "cifar10": 4 * 136_886}
"""Of the gradients that are summed."""


def equal_workers(ratio: float, nbytes: int, batch_size: int = 32, count: int = 4) -> Fleet:
    """Equal machines whose sum takes `ratio` times as long as computing a batch."""
    compute_s = batch_size / 2000
    bandwidth = 2 * (count - 1) / count * nbytes / (ratio * compute_s)
    network = Network(bandwidth_bytes_per_s=bandwidth, latency_s=1e-5)
    server = ServerMachine(bandwidth_bytes_per_s=bandwidth * count)
    return Fleet(machine=(Machine(samples_per_s=2000, count=count, jitter=0.05),), network=network, server=(server,))


def od(task: str, ratio: float, way: Way, lr: float) -> Config:
    """OD-SGD and its rivals, to the same number of samples."""
    samples = {"mnist": 240_000, "cifar10": 150_000}[task]
    return replace(
        TASKS[task],
        fleet=equal_workers(ratio, NBYTES[task]),
        algorithm=way[0],
        parameters=dict(way[1]),
        lr=lr,
        schedule="cosine",
        samples=samples,
        seconds=None,
        stop_at_target=False,
        eval_every=samples // 10,
    )


OD_WAYS: Mapping[str, Way] = {
    "od": ("od", {"warmup": 200}),
    "od, knows the momentum": ("od", {"warmup": 200, "local_momentum": 0.9}),
    "od, all-reduce": ("od", {"warmup": 200, "form": "all-reduce"}),
    "od, all-reduce, knows the momentum": ("od", {"warmup": 200, "form": "all-reduce", "local_momentum": 0.9}),
    "sync": ("sync", {}),
    "async": ("async", {}),
}
OD_RATIOS = {"mnist": (0.3, 0.7, 1.5), "cifar10": (0.7,)}


def wp_nodes() -> Fleet:
    """8 nodes: 4 at full speed, 2 at half, 2 at a quarter."""
    classes = ((1000, 4), (500, 2), (250, 2))
    return Fleet(
        machine=tuple(Machine(samples_per_s=pace, count=count, jitter=0.05) for pace, count in classes),
        network=FAST_NETWORK,
    )


def wp(rule: str, steps: int, seed: int) -> Config:
    """One-shot averaging after this many steps of the fastest, on a9a with L2 logistic regression."""
    l2 = 0.05
    return Config(
        engine="virtual",
        algorithm="wp",
        parameters={"weights": rule, "steps": steps, "rounds": 1, "l2": l2},
        task="svmlight",
        task_parameters={"path": "a9a.gz", "test_path": "a9a.t.gz", "l2": l2},
        fleet=wp_nodes(),
        batch_size=1,
        lr=0.05,
        sampling="iid",
        samples=10**9,
        eval_every=10**9,
        detail=False,
        seed=seed,
    )


WP_STEPS = (20, 50, 100, 200, 400, 1000, 3000)
OD_LRS = {"mnist": (0.02, 0.05), "cifar10": (0.02,)}


def best_od_lr(runner: Runner, task: str, ratio: float, way: Way) -> float:
    """The learning rate with the best final accuracy."""
    return max(OD_LRS[task], key=lambda lr: runner.of(od(task, ratio, way, lr)).final())


def final_runs(task: str, optimizer: str) -> list[Config]:
    """Sync and Pace to the end, at every learning rate and seed of the final runs."""
    return [
        to_the_end(task, fleet, algorithm, lr, optimizer, seed)
        for fleet in ("mild", "steep", "drift", "uniform", "wan")
        for algorithm in ("sync", "pace")
        for lr in FINAL_LRS[task, optimizer]
        for seed in FINAL_SEEDS
        if fleet == "mild" or algorithm == "pace"  # sync does the same on every fleet, only slower
    ]


IO_RATIOS = (0.5, 1.0, 2.0)
NUM_WORKERS = (4, 8, 16, 32, 64, 128, 256)


def layered(algorithm: str, count: int, io_ratio: float, *, timing_only: bool) -> Config:
    """`count` workers in subgroups of four, loading `io_ratio` times as long as a sum among the communicators takes."""
    bandwidth, nbytes, groups = 1.25e8, 4 * 101_770, max(1, count // 4)
    sum_s = 2 * (groups - 1) / groups * nbytes / bandwidth + 2 * (groups - 1) * 1e-4 if groups > 1 else 3e-3
    fleet = Fleet(
        machine=(Machine(samples_per_s=2000, count=count, io_s_per_sample=io_ratio * sum_s / 32),),
        network=Network(bandwidth_bytes_per_s=bandwidth, latency_s=1e-4),
    )
    return replace(
        MNIST,
        algorithm=algorithm,
        parameters={"groups": groups} if algorithm == "layered" else {},
        fleet=fleet,
        lr=0.05,
        samples=(60_000 if not timing_only else 32 * count * 40),
        seconds=None,
        target=None,
        stop_at_target=False,
        timing_only=timing_only,
        schedule="cosine",
        sampling="shards" if not timing_only else "queue",
    )


def layered_runs() -> list[Config]:
    """Trajectories at 4 subgroups of 4, and times at 4 to 256 workers."""
    learn = [layered(way, 16, ratio, timing_only=False) for way in ("sync", "layered") for ratio in IO_RATIOS]
    grow = [
        layered(way, count, ratio, timing_only=True)
        for way in ("sync", "layered")
        for count in NUM_WORKERS
        for ratio in IO_RATIOS
    ]
    return learn + grow


def limit(fleet: str, algorithm: str) -> Config:
    """A long run for its times alone: how much of the fleet's limit is used?"""
    return replace(
        MNIST,
        algorithm=algorithm,
        parameters=dict(UNBOUNDED) if algorithm == "pace" else {},
        fleet=fleet,
        samples=2_000_000,
        seconds=None,
        target=None,
        stop_at_target=False,
        timing_only=True,
    )
