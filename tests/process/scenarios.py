"""What the ranks of a user's script run, by name: `torchrun … -m tests.process.scenarios NAME FOLDER`.

Every rank writes what it saw into a file of the folder.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from tests.process.small_net import (
    RANK,
    Numbers,
    adamw,
    flat,
    loss_in_bfloat16,
    make_net,
    mean_loss,
    plain,
    sgd,
    train,
    two_groups,
)
from tests.process.started import PATIENCE_S, until
from torch import nn

import ownpace
from ownpace.core.blocks.accumulate import accumulate, accumulate_and_reduce
from ownpace.core.blocks.push_pull import pull, push
from ownpace.core.contract.events import Event, Update
from ownpace.core.contract.roles import Server, Worker

ELSEWHERE = {"layered": "refused", "async": "in sampling_loops", "stale": "in sampling_loops"}
IN_A_LOOP: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ownpace.ALGORITHMS if name not in ELSEWHERE},
    "pace, capped": ("pace", {"max_batch": 20, "warmup": 2, "lr_rule": "adascale"}),
    "od": ("od", {"warmup": 1, "local_momentum": 0.9}),
    "od, without servers": ("od", {"warmup": 1, "form": "all-reduce", "local": "adaptive"}),
    "grouping": ("grouping", {"prerun": 1, "regroup_every": 2}),
    "local": ("local", {"steps": 3}),
    "diloco": ("diloco", {"steps": 3}),
    "wp": ("wp", {"steps": 3}),
    "wp, one node": ("wp", {"steps": 3, "per_node": 2, "delay": 1}),
}
"""Everything that can run in a user's loop, with parameters that let a short one come to the main part."""


@dataclass(frozen=True, kw_only=True)
class TwoToOne(ownpace.Algorithm):
    """Synchronous; rank 0 computes two batches for every update, rank 1 one."""

    async def worker(self, me: Worker) -> None:
        while me.training:
            me.step(await accumulate_and_reduce(me, (2 - me.rank) * me.batch_size))


@dataclass(frozen=True, kw_only=True)
class Counting(ownpace.Algorithm):
    """Async-SGD whose server counts the gradients since it began, and tells."""

    told: ClassVar[list[float]] = []

    async def worker(self, me: Worker) -> None:
        while me.training:
            push(me, await accumulate(me, me.batch_size))
            self.told.append((await pull(me))["count"])

    async def server(self, me: Server) -> None:
        count = 0
        while True:
            message = await me.receive()
            count += 1
            me.step(message.gradient)
            me.send(message.sender, me.parameters, count=count)


def every_algorithm() -> dict[str, Any]:
    seen: dict[str, Any] = {
        label: train(name, 61, slow_rank=number % 2, epochs=2, join={"parameters": parameters})
        for number, (label, (name, parameters)) in enumerate(IN_A_LOOP.items())
    }
    try:
        train("layered", 61)
    except ownpace.InputError as error:
        seen["layered"] = str(error)
    return seen


def unequal_batches() -> dict[str, Any]:
    """A scheduler stepped once a batch; the slower rank is warned."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        seen = {"scheduled": train(TwoToOne(), 48, gamma=0.5)}
    return {**seen, "warned": [str(warning.message) for warning in warned]}


def second_loops() -> dict[str, Any]:
    return {
        name: train(name, 64, calls=2, sampling="shards", join={"parameters": parameters})
        for name, parameters in (("od", {"warmup": 1}), ("backup", {"backups": 0}))
    }


def grouped_loops() -> dict[str, Any]:
    """Two that belong together, whatever their pace; of each of two loops, the sizes of the updates.

    No rank goes on beyond its fourth batch before the other's first one has been answered: both have batches left when
    the server has measured their paces.
    """
    noted: list[Event] = []
    folder = Path(sys.argv[2])

    def wait_for_the_other(loop: int, batch: int) -> None:
        if batch == 1:
            (folder / f"{RANK}.{loop}").touch()
        if batch == 4:
            until((folder / f"{1 - RANK}.{loop}").exists, "the other rank has begun")

    join = {"parameters": {"prerun": 1, "min_gap": 1e9}, "detail": True, "on_event": noted.append}
    seen: dict[str, Any] = {
        "grouping": train("grouping", 512, calls=2, sampling="shards", join=join, on_batch=wait_for_the_other)
    }
    updates = [event for event in noted if isinstance(event, Update)]
    seen["first"] = [event.samples for event in updates if event.total_samples <= 512]
    seen["second"] = [event.samples for event in updates if event.total_samples > 512]
    return seen


def sync_loops() -> dict[str, Any]:
    halves: dict[str, Any] = {"sampling": "shards"}
    return {
        "uneven": train("sync", 53, sgd, epochs=2),
        "uneven adamw": train("sync", 45, adamw, slow_rank=1),
        "uneven shards": train("sync", 37, two_groups, **halves),
        "one batch": train("sync", 8, sgd),
        "balanced": train("balanced", 101, sgd, slow_rank=0, slow_s=0.05, epochs=3),
        "accumulated": train("sync", 64, sgd, every=2, **halves),
        "one batch left over": train("sync", 48, sgd, every=2, calls=2, **halves),
        "clipped each": train("sync", 32, sgd, clip_each=0.1, **halves),
        "clipped sum": train("sync", 32, sgd, wrap={"clip_norm": 0.1}, **halves),
        "scheduled": train("sync", 32, two_groups, gamma=0.7, **halves),
        "scheduled first": train("sync", 32, two_groups, gamma=0.7, schedule_first=True, **halves),
        "bfloat16": train("sync", 32, sgd, loss=loss_in_bfloat16, **halves),
        "normed": train("sync", 32, sgd, net=make_net(norm=True), **halves),
        "scaled": with_scaler(),
    }


def with_scaler() -> dict[str, Any]:
    """Rank 1 meets an infinite gradient at its second batch."""
    net = make_net()
    optimizer = sgd(net)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    loops = []
    with ownpace.join("sync") as fleet:
        fleet.wrap(net, optimizer)
        for x, y, indices in fleet.batches(Numbers(64), 8, sampling="shards"):
            loops.append(indices.tolist())
            loss = mean_loss(net, x, y)
            if fleet.rank == 1 and len(loops) == 2:
                loss = loss * torch.inf
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return {
        "loops": [loops],
        "weights": flat(net).tolist(),
        "scale": scaler.get_scale(),
        "updates": fleet.summary.updates,
    }


def sampling_loops() -> dict[str, Any]:
    return {
        "queue": train("sync", 61, slow_rank=0, epochs=3),
        "queue, loaded by others": train("balanced", 61, slow_rank=0, epochs=3, num_workers=2),
        "queue, async": train("async", 61, slow_rank=0, epochs=3, num_workers=2),
        "queue, stale": train("stale", 61, slow_rank=1, epochs=3, join={"parameters": {"staleness": 1}}),
        "calls": train("sync", 40, calls=3),
        "async calls": train("async", 40, calls=3),
        "iid": train("sync", 64, sampling="iid", epochs=2),
        "shards": train("sync", 65, sampling="shards", epochs=2, calls=2),
    }


BROKEN = ("sync", "async", "stale", "balanced", "pace", "acco", "od", "grouping", "backup", "local", "wp", "stride")


def broken_loops() -> dict[str, Any]:
    seen: dict[str, Any] = {
        algorithm: train(algorithm, 80, break_at=(number % 2, 2), calls=2) for number, algorithm in enumerate(BROKEN)
    }
    net = make_net(norm=True)
    optimizer = sgd(net)
    with ownpace.join("sync") as fleet:
        fleet.wrap(net, optimizer)
        held = iter(fleet.batches(Numbers(800), 8))  # not closed by `break`, as this name holds it
        steps = 0
        for x, y, _ in held:
            mean_loss(net, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            if fleet.rank == 0 and steps == 2:
                break
    return {**seen, "held": {"weights": flat(net).tolist(), "steps": steps}}


def async_loops() -> dict[str, Any]:
    return {
        "two servers": train("async", 64, two_groups, gamma=0.9, join={"servers": 2}, sampling="shards"),
        "normed": train("async", 64, sgd, net=make_net(norm=True)),
        "one batch left over": train("stale", 48, sgd, every=2, calls=2, sampling="shards"),
        "watched": watch(),
    }


def watch() -> dict[str, Any]:
    """Rank 1 holds its first batch until it sees, by evaluating, that rank 0 has moved the servers' parameters."""
    net = make_net()
    optimizer = plain(net)
    seen: dict[str, Any] = {}
    deadline = time.monotonic() + PATIENCE_S
    with ownpace.join("async") as fleet:
        fleet.wrap(net, optimizer)
        for x, y, _ in fleet.batches(Numbers(160), 8, sampling="shards"):
            if fleet.rank == 1 and not seen:
                own = flat(net)
                evaluated = fleet.evaluate(flat)
                while torch.equal(evaluated, own) and time.monotonic() < deadline:
                    evaluated = fleet.evaluate(flat)
                seen["saw others' updates"] = not torch.equal(evaluated, own)
                seen["came back to its own"] = torch.equal(flat(net), own)
            mean_loss(net, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
        seen["after the loop"] = torch.equal(fleet.evaluate(flat), flat(net))
    seen["after the fleet"] = torch.equal(fleet.evaluate(flat), flat(net))
    return {**seen, "weights": flat(net).tolist()}


def refused_loops() -> dict[str, Any]:
    """Rank 1 differs in one thing at a time; at last in nothing."""
    other = RANK == 1

    def attempt(algorithm: str = "sync", size: int = 16, **options: Any) -> str:
        try:
            train(algorithm, size, **options)
        except ownpace.InputError as error:
            return str(error)
        return ""

    return {
        "model": attempt(net=nn.Sequential(nn.Linear(6, 3)) if other else make_net()),
        "optimizer": attempt(make_optimizer=lambda net: torch.optim.SGD(net.parameters(), lr=0.2 if other else 0.1)),
        "kind": attempt(make_optimizer=adamw if other else sgd),
        "algorithm": attempt("async" if other else "sync"),
        "other way round": attempt("sync" if other else "async"),
        "samples": attempt(size=17 if other else 16),
        "nothing": attempt(),
    }


def failing_rank_1() -> None:
    fail("sync", 1)


def failing_rank_0() -> None:
    fail("async", 0)


def fail(algorithm: str, rank: int) -> None:
    net = make_net()
    optimizer = sgd(net)
    with ownpace.join(algorithm) as fleet:
        fleet.wrap(net, optimizer)
        for number, (x, y, _) in enumerate(fleet.batches(Numbers(64), 8, epochs=100_000, num_workers=1)):
            if number == 5 and fleet.rank == rank:
                raise KeyError("the user's own mistake")
            mean_loss(net, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()


def main() -> None:
    scenario, folder = sys.argv[1:]
    torch.set_num_threads(1)
    warnings.simplefilter("error")  # no scheduler has reason to warn
    warnings.filterwarnings("ignore", "ownpace: an update had")  # abs and acco, next to a slow rank
    warnings.filterwarnings("ignore", ".*never stepped with")  # some leave a batch over, on purpose
    seen = globals()[scenario]()
    (Path(folder) / f"{RANK}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
