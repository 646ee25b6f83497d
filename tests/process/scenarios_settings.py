"""Schedules of all kinds, and replicas that part: `torchrun … -m tests.process.scenarios_settings NAME FOLDER`."""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tests.process.scenarios import TwoToOne
from tests.process.small_net import RANK, Numbers, flat, make_net, mean_loss
from tests.unit.engines.process.node.third_party import Prodigy, ScheduleFree
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR

import ownpace

Stepped = Callable[[], object]


def one_cycle_sgd(net: nn.Module) -> tuple[Optimizer, Stepped]:
    """Moves the momentum, too."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    return optimizer, OneCycleLR(optimizer, max_lr=0.3, total_steps=200).step


def one_cycle_adamw(net: nn.Module) -> tuple[Optimizer, Stepped]:
    """Moves the betas, too."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    return optimizer, OneCycleLR(optimizer, max_lr=0.03, total_steps=200).step


def cosine_adamw(net: nn.Sequential) -> tuple[Optimizer, Stepped]:
    groups: list[dict[str, Any]] = [
        {"params": net[0].parameters(), "weight_decay": 0.1},
        {"params": net[3].parameters(), "lr": 0.02},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    return optimizer, CosineAnnealingLR(optimizer, T_max=37).step


def warm_up(net: nn.Module) -> tuple[Optimizer, Stepped]:
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    return optimizer, LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 13)).step


def tensor_lr(net: nn.Module) -> tuple[Optimizer, Stepped]:
    lr = torch.tensor(0.1)
    optimizer = torch.optim.Adam(net.parameters(), lr=lr, foreach=False)
    scheduler = CosineAnnealingLR(optimizer, T_max=37)

    def step() -> None:
        scheduler.step()
        assert optimizer.param_groups[0]["lr"] is lr  # its place in memory is the user's, whatever is agreed on

    return optimizer, step


def decay_schedule(net: nn.Module) -> tuple[Optimizer, Stepped]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=0.3)

    def step() -> None:
        optimizer.param_groups[0]["weight_decay"] *= 0.9

    return optimizer, step


SCHEDULES = {
    each.__name__: each for each in (one_cycle_sgd, one_cycle_adamw, cosine_adamw, warm_up, tensor_lr, decay_schedule)
}


def schedule_free(net: nn.Module) -> tuple[Optimizer, Stepped]:
    """Keeps state in its groups, beside the settings."""
    optimizer = ScheduleFree(net.parameters(), lr=0.1)
    return optimizer, LambdaLR(optimizer, lambda step: 1 / (1 + step)).step


def prodigy(net: nn.Module) -> tuple[Optimizer, Stepped]:
    optimizer = Prodigy(net.parameters(), lr=0.1)
    return optimizer, LambdaLR(optimizer, lambda step: 1 / (1 + step)).step


def half_the_rate(net: nn.Module) -> tuple[Optimizer, Stepped]:
    """On rank 1, as if its scheduler had not come as far."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step() -> None:
        optimizer.param_groups[0]["lr"] = 0.1 / (1 + RANK)

    return optimizer, step


STATEFUL = {"schedule_free": schedule_free, "prodigy": prodigy}
ALGORITHMS: dict[str, tuple[str | ownpace.Algorithm, list[str]]] = {
    "two to one": (TwoToOne(), [*SCHEDULES, *STATEFUL]),
    "pace": ("pace", [*SCHEDULES, *STATEFUL]),
    "balanced": ("balanced", ["one_cycle_sgd", "cosine_adamw"]),
    "sync": ("sync", ["one_cycle_adamw"]),
    "async": ("async", ["one_cycle_sgd", "tensor_lr"]),
    "stride": ("stride", ["half_the_rate"]),
}


def train(algorithm: str | ownpace.Algorithm, make: Callable[[nn.Sequential], tuple[Optimizer, Stepped]]) -> Any:
    """A loop that steps its scheduler once a batch; rank 1 takes longer."""
    net = make_net(seed=RANK)
    optimizer, step = make(net)
    batches = 0
    with warnings.catch_warnings(record=True) as warned, ownpace.join(algorithm) as fleet:
        warnings.simplefilter("always")
        fleet.wrap(net, optimizer)
        for x, y, _ in fleet.batches(Numbers(96), 8, epochs=2):
            if fleet.rank == 1:
                time.sleep(0.002)
            mean_loss(net, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
            step()
            batches += 1
    return {
        # As text: two numbers that are equal here are equal bit for bit.
        "weights": [number.hex() for number in flat(net).tolist()],
        "replicas_identical": fleet.summary.replicas_identical,
        "batches": batches,
        "warned": [str(each.message) for each in warned],
    }


def schedules() -> dict[str, Any]:
    return {
        f"{label}, {name}": train(algorithm, {**SCHEDULES, **STATEFUL, "half_the_rate": half_the_rate}[name])
        for label, (algorithm, names) in ALGORITHMS.items()
        for name in names
    }


def part(algorithm: str, when: str) -> None:
    """Rank 1 writes to a parameter: within the loop, which is long, or after it."""
    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with ownpace.join(algorithm) as fleet:
        fleet.wrap(net, optimizer)
        for number, (x, y, _) in enumerate(fleet.batches(Numbers(64), 8, epochs=2 if when == "after" else 100_000)):
            mean_loss(net, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
            if fleet.rank == 1 and number == 5 and when == "within":
                write_to(net)
        if fleet.rank == 1 and when == "after":
            write_to(net)


def write_to(net: nn.Sequential) -> None:
    with torch.no_grad():
        net.get_parameter("3.weight")[0, 0] += 0.5


def parted() -> None:
    told = {}
    for algorithm, when in (("sync", "within"), ("sync", "after"), ("balanced", "within")):
        try:
            part(algorithm, when)
        except ownpace.OwnpaceError as error:
            told[f"{algorithm}, {when}"] = [error.code, str(error)]
    write(told)
    part("sync", "after")  # and this is how it ends a script


def write(seen: object) -> None:
    (Path(sys.argv[2]) / f"{RANK}.json").write_text(json.dumps(seen))


def main() -> None:
    torch.set_num_threads(1)
    seen = globals()[sys.argv[1]]()
    if seen is not None:
        write(seen)


if __name__ == "__main__":
    main()
