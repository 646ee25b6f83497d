"""What the ranks of a script see of the fleet's progress: `torchrun … -m tests.process.scenarios_progress …`."""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from tests.process.small_net import RANK, Numbers, flat, make_net, mean_loss, sgd
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, OneCycleLR, StepLR

import ownpace
from ownpace.core.contract.events import Event, Update

ALGORITHMS: dict[str, dict[str, Any]] = {
    "pace": {},
    "sync": {},
    "balanced": {},
    "async": {},
    "local": {"steps": 2},
    "stride": {"max_batch": 32},
}
SIZE, BATCH, EPOCHS, LR = 128, 8, 2, 0.1
STEPS = SIZE * EPOCHS // (2 * BATCH)


def loop(
    fleet: Any, net: Any, optimizer: Any, scheduler: LRScheduler, slow_rank: int, **batches: Any
) -> list[tuple[int, int, int]]:
    """A user's loop; returns the fleet's progress after each step of this rank."""
    seen = []
    for x, y, _ in fleet.batches(Numbers(SIZE), BATCH, **batches):
        if fleet.rank == slow_rank:
            time.sleep(0.004)
        mean_loss(net, x, y).backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()  # the line of the script that was there before
        seen.append((fleet.updates, fleet.samples, fleet.epoch))
    return seen


def one_run(name: str, parameters: dict[str, Any], make_scheduler: Any, slow_rank: int) -> dict[str, Any]:
    """Three loops: one over all epochs, one that ends after a few updates, and one that a rank leaves."""
    net = make_net(seed=RANK)
    optimizer = sgd(net)
    scheduler = make_scheduler(optimizer)
    with ownpace.join(name, parameters=parameters) as fleet:
        begin = (fleet.updates, fleet.samples, fleet.epoch)
        fleet.wrap(net, optimizer, scheduler=scheduler)
        per_epoch = fleet.schedule(StepLR(torch.optim.SGD([torch.zeros(1)], 1.0), 1, gamma=0.5), every="epoch")
        ends, seen = [], []

        def note() -> None:
            rates = [optimizer.param_groups[0]["lr"], per_epoch.get_last_lr()[0]]
            ends.append([fleet.updates, fleet.samples, fleet.epoch, *rates])

        seen += loop(fleet, net, optimizer, scheduler, slow_rank, epochs=EPOCHS)
        note()
        seen += loop(fleet, net, optimizer, scheduler, slow_rank, epochs=EPOCHS, updates=3)
        note()
        for _ in fleet.batches(Numbers(SIZE), BATCH):
            break
        note()
    return {"begin": begin, "seen": seen, "ends": ends, "weights": flat(net).tolist()}


def one_cycle(optimizer: Any) -> LRScheduler:
    return OneCycleLR(optimizer, max_lr=LR, total_steps=STEPS, cycle_momentum=False)


def cosine(optimizer: Any) -> LRScheduler:
    return CosineAnnealingLR(optimizer, STEPS)


def schedules() -> dict[str, Any]:
    """Every algorithm, with a slow rank 0 and with a fast one."""
    return {
        f"{name} {slow_rank} {make.__name__}": one_run(name, parameters, make, slow_rank)
        for name, parameters in ALGORITHMS.items()
        for slow_rank, make in ((0, one_cycle), (1, cosine))
    }


BOUNDS: dict[str, tuple[str, dict[str, Any]]] = {
    "pace": ("pace", {}),
    "pace, bounded": ("pace", {"max_batch": 24, "micro": "fixed"}),
    "pace, prescribed": ("pace", {"target_batch": 21}),
    "abs": ("abs", {}),
    "abs, prescribed": ("abs", {"target_batch": 21, "micro": "equal-time"}),
    "acco, prescribed": ("acco", {"target_batch": 42}),
}


def bounds() -> dict[str, Any]:
    """The samples of every update, and what was warned of. Rank 1 is so slow that rank 0 could do a lot meanwhile."""
    seen: dict[str, Any] = {}
    for label, (name, parameters) in BOUNDS.items():
        net = make_net()
        noted: list[Event] = []
        optimizer = sgd(net)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with ownpace.join(name, parameters=parameters, detail=True, on_event=noted.append) as fleet:
                fleet.wrap(net, optimizer)
                for x, y, _ in fleet.batches(Numbers(512), BATCH):
                    time.sleep(0.02 if RANK else 0.0001)
                    mean_loss(net, x, y).backward()
                    optimizer.step()
                    optimizer.zero_grad()
        seen[label] = {
            "sizes": [event.samples for event in noted if isinstance(event, Update)],
            "largest": fleet.summary.update_samples.max,
            "warned": [str(warning.message) for warning in caught],
        }
    return seen


def accumulated() -> list[int]:
    """Four batches for a step; rank 0 holds its first one until hardly any are left."""
    net, stepped = make_net(), Path(sys.argv[2]) / "stepped"
    optimizer = sgd(net)
    scheduler = StepLR(optimizer, 1)
    warnings.simplefilter("ignore")  # samples are left over
    with ownpace.join("async") as fleet:
        fleet.wrap(net, optimizer, scheduler=scheduler)
        for number, (x, y, _) in enumerate(fleet.batches(Numbers(SIZE), 4), 1):
            while RANK == 0 and not stepped.exists():
                time.sleep(0.001)
            (mean_loss(net, x, y) / 4).backward()
            if number % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
            if number == 29:  # of 31, as one is in the hands of rank 0, which never has four
                stepped.touch()
        return [fleet.steps, scheduler.last_epoch]


def main() -> None:
    scenario, folder = sys.argv[1:]
    torch.set_num_threads(1)
    warnings.simplefilter("error")  # no scheduler has reason to warn
    seen = globals()[scenario]()
    (Path(folder) / f"{RANK}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
