"""The drop-in: users' own loops, alone and under torchrun.

The loops of several ranks stand in this file, too: torchrun runs it as a script, with the name of one of them, and
every rank writes what it saw into a file.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import Dataset

import ownpace
from ownpace.core.blocks.accumulate import accumulate_and_reduce
from ownpace.core.contract.events import Event, Update
from ownpace.core.contract.roles import Worker

RANK = int(os.environ.get("RANK", "0"))
MARK = "OWNPACE_TEST_MARK"
MakeOptimizer = Callable[[nn.Sequential], torch.optim.Optimizer]


# ---- a small model and its data ----


class Numbers(Dataset[tuple[Tensor, Tensor, int]]):
    """Random samples, each with its index."""

    def __init__(self, size: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(size, 6, generator=generator)
        self.y = torch.randint(3, (size,), generator=generator)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        return self.x[index], self.y[index], index


def make_net(*, norm: bool = False, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8) if norm else nn.Identity(), nn.Tanh(), nn.Linear(8, 3))


def sgd(net: nn.Sequential) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def plain(net: nn.Sequential) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.1)


def adamw(net: nn.Sequential) -> torch.optim.Optimizer:
    return torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.1)


def two_groups(net: nn.Sequential) -> torch.optim.Optimizer:
    groups = [{"params": net[0].parameters(), "lr": 0.05, "weight_decay": 0.01}, {"params": net[3].parameters()}]
    return torch.optim.SGD(groups, lr=0.2, momentum=0.9)


def flat(net: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in net.parameters()])


def mean_loss(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(net(x), y)


def loss_in_bfloat16(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return mean_loss(net, x, y)


Updates = Sequence[Sequence[Sequence[int]]]
"""Of each update, the batches that it was made of."""


def on_one_machine(
    size: int,
    updates: Updates,
    make_optimizer: MakeOptimizer,
    *,
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor] = mean_loss,
    clip_each: float | None = None,
    clip_sum: float | None = None,
    gamma: float = 1.0,
) -> Tensor:
    """What plain torch makes of the same batches, each sample counting once."""
    data, net = Numbers(size), make_net()
    optimizer = make_optimizer(net)
    scheduler = ExponentialLR(optimizer, gamma)
    for batches in updates:
        total = torch.zeros_like(flat(net))
        for batch in batches:
            optimizer.zero_grad()
            loss(net, data.x[list(batch)], data.y[list(batch)]).backward()
            if clip_each is not None:
                nn.utils.clip_grad_norm_(net.parameters(), clip_each)
            total += len(batch) * torch.cat([p.grad.reshape(-1) for p in net.parameters()])
        mean = total / sum(map(len, batches))
        for parameter, part in zip(net.parameters(), mean.split([p.numel() for p in net.parameters()]), strict=True):
            parameter.grad = part.view_as(parameter)
        if clip_sum is not None:
            nn.utils.clip_grad_norm_(net.parameters(), clip_sum)
        optimizer.step()
        scheduler.step()
    return flat(net)


def train(
    algorithm: str | ownpace.Algorithm,
    size: int,
    make_optimizer: MakeOptimizer = sgd,
    *,
    net: nn.Sequential | None = None,
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor] = mean_loss,
    join: dict[str, Any] | None = None,
    wrap: dict[str, Any] | None = None,
    clip_each: float | None = None,
    gamma: float | None = None,
    schedule_first: bool = False,
    every: int = 1,
    slow_rank: int | None = None,
    calls: int = 1,
    break_at: tuple[int, int] | None = None,
    **batches: Any,
) -> dict[str, Any]:
    """A user's loop. Returns what this rank saw.

    `break_at` is a rank and the number of the batch at which it leaves its first loop.
    """
    net = make_net(seed=RANK) if net is None else net  # the others begin with rank 0's
    optimizer = make_optimizer(net)
    scheduler = ExponentialLR(optimizer, gamma) if gamma is not None and schedule_first else None
    loops: list[list[list[int]]] = []
    updates: list[list[list[int]]] = []
    with ownpace.join(algorithm, **(join or {})) as fleet:
        net, optimizer = fleet.wrap(net, optimizer, **(wrap or {}))
        if gamma is not None and not schedule_first:
            scheduler = ExponentialLR(optimizer, gamma)
        for call in range(calls):
            loops.append([])
            optimizer.zero_grad()  # what the loop before has left over
            waiting: list[list[int]] = []  # the batches since the last update
            if break_at is not None:
                batches["epochs"] = 1 if call else 10_000
            for x, y, indices in fleet.batches(Numbers(size), **{"batch_size": 8, **batches}):
                if break_at == (fleet.rank, len(loops[-1])) and call == 0:
                    break
                loops[-1].append(indices.tolist())
                for _ in range(20 if fleet.rank == slow_rank else 0):
                    net(x)
                (loss(net, x, y) / every).backward()
                if clip_each is not None:
                    nn.utils.clip_grad_norm_(net.parameters(), clip_each)
                if len(loops[-1]) % every == 0:
                    before = flat(net)
                    optimizer.step()
                    waiting += loops[-1][-every:]
                    if not torch.equal(flat(net), before):
                        updates.append(waiting)
                        waiting = []
                    optimizer.zero_grad()
                    if scheduler is not None:
                        scheduler.step()
            if waiting:  # they became part of an update when the data had ended
                updates.append(waiting)
    return {
        "loops": loops,
        "updates": updates,
        "weights": flat(net).tolist(),
        "buffers": [buffer.tolist() for buffer in net.buffers()],
        "rates": [group["lr"] for group in optimizer.param_groups],
        "summary": fleet.summary.as_dict(),
    }


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


# ---- what the ranks run, by name ----


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
    return {"scheduled": train(TwoToOne(), 48, gamma=0.5)}


def second_loops() -> dict[str, Any]:
    return {
        name: train(name, 64, calls=2, sampling="shards", join={"parameters": parameters})
        for name, parameters in (("od", {"warmup": 1}), ("backup", {"backups": 0}))
    }


def grouped_loops() -> dict[str, Any]:
    """Two that belong together, whatever their pace; of each of two loops, the sizes of the updates."""
    noted: list[Event] = []
    join = {"parameters": {"prerun": 1, "min_gap": 1e9}, "detail": True, "on_event": noted.append}
    seen: dict[str, Any] = {"grouping": train("grouping", 512, calls=2, sampling="shards", join=join)}
    updates = [event for event in noted if isinstance(event, Update)]
    seen["first"] = [event.samples for event in updates if event.total_samples <= 512]
    seen["second"] = [event.samples for event in updates if event.total_samples > 512]
    return seen


def sync_loops() -> dict[str, Any]:
    halves = {"sampling": "shards"}
    return {
        "uneven": train("sync", 53, sgd, epochs=2),
        "uneven adamw": train("sync", 45, adamw, slow_rank=1),
        "uneven shards": train("sync", 37, two_groups, **halves),
        "one batch": train("sync", 8, sgd),
        "balanced": train("balanced", 101, sgd, slow_rank=0, epochs=3),
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


BROKEN = ("sync", "async", "stale", "balanced", "pace", "acco", "od", "grouping", "backup", "local", "wp")


def broken_loops() -> dict[str, Any]:
    seen: dict[str, Any] = {
        algorithm: train(algorithm, 80, break_at=(number % 2, 2), calls=2) for number, algorithm in enumerate(BROKEN)
    }
    net = make_net(norm=True)
    optimizer = sgd(net)
    with ownpace.join("sync") as fleet:
        fleet.wrap(net, optimizer)
        held = fleet.batches(Numbers(800), 8)  # not closed by `break`, as somebody holds it
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
    deadline = time.monotonic() + 30
    with ownpace.join("async") as fleet:
        fleet.wrap(net, optimizer)
        for x, y, _ in fleet.batches(Numbers(160), 8, sampling="shards"):
            if fleet.rank == 1 and not seen:
                own = flat(net)
                judged = fleet.evaluate(flat)
                while torch.equal(judged, own) and time.monotonic() < deadline:
                    judged = fleet.evaluate(flat)
                seen["saw others' updates"] = not torch.equal(judged, own)
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

    def attempt(algorithm: str = "sync", size: int = 16, **options: Any) -> list[Any]:
        start = time.monotonic()
        try:
            train(algorithm, size, **options)
            message = ""
        except ownpace.InputError as error:
            message = str(error)
        return [message, time.monotonic() - start]

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
                (Path(sys.argv[2]) / "failed").write_text(str(time.time()))
                raise KeyError("the user's own mistake")
            mean_loss(net, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()


# ---- running them ----


def processes_with(mark: str) -> list[int]:
    """Whoever lives and has this in its environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def launch(scenario: str, folder: Path, *, limit_s: float = 100) -> tuple[subprocess.CompletedProcess[str], list[Any]]:
    """Run one of the functions above on two ranks; returns what each of them wrote. Nobody may outlive torchrun."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1"]
    command += ["--master-port", str(port), __file__, scenario, str(folder)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", MARK: str(folder)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=limit_s, check=False)
    assert processes_with(str(folder)) == []
    written = [folder / f"{rank}.json" for rank in range(2)]
    return done, [json.loads(path.read_text()) for path in written if path.exists()]


def run(scenario: str, folder: Path) -> list[Any]:
    done, ranks = launch(scenario, folder)
    assert done.returncode == 0, done.stderr
    assert len(ranks) == 2
    return ranks


def main() -> None:
    scenario, folder = sys.argv[1:]
    torch.set_num_threads(1)
    warnings.simplefilter("error")  # no scheduler has reason to warn
    seen = globals()[scenario]()
    (Path(folder) / f"{RANK}.json").write_text(json.dumps(seen))


def updates_of(ranks: Sequence[Any], name: str) -> Updates:
    """The batches of each synchronous update. Who has no data left takes no part."""
    together = zip_longest(*(rank[name]["updates"] for rank in ranks), fillvalue=[])
    return [[*chain(*update)] for update in together]


def all_indices(ranks: Sequence[Any], name: str, number: int = 0) -> list[int]:
    return sorted(chain.from_iterable(chain.from_iterable(rank[name]["loops"][number] for rank in ranks)))


def same_weights(ranks: Sequence[Any], name: str) -> Tensor:
    assert ranks[0][name]["weights"] == ranks[1][name]["weights"], name
    return torch.tensor(ranks[0][name]["weights"])


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


# ---- two ranks ----


def test_every_algorithm_trains_in_a_loop(tmp_path: Path) -> None:
    """Every sample is handed out once an epoch, and all ranks end with the same model."""
    ranks = run("every_algorithm", tmp_path)
    for label, (name, _) in IN_A_LOOP.items():
        assert all_indices(ranks, label) == sorted([*range(61)] * 2), label
        assert not torch.equal(same_weights(ranks, label), flat(make_net())), label
        summary, other = (rank[label]["summary"] for rank in ranks)
        assert summary == other, label
        assert summary["reason"] == "finished", label
        assert summary["replicas_identical"] is (True if ownpace.ALGORITHMS[name].replicas_identical else None), label
        if name == "backup":  # who is late is dropped
            assert 0 < summary["samples"] <= 122
        else:
            assert summary["samples"] == 122, label
    for rank in ranks:
        assert rank["layered"].startswith("this algorithm loads its samples itself")
        assert "\n" not in rank["layered"]


@pytest.mark.slow
def test_a_scheduler_stepped_once_a_batch_leaves_all_ranks_with_the_same_model(tmp_path: Path) -> None:
    """Though one rank has twice as many batches as the other."""
    ranks = run("unequal_batches", tmp_path)
    counts = [len(rank["scheduled"]["loops"][0]) for rank in ranks]
    assert counts[0] > counts[1]
    same_weights(ranks, "scheduled")


@pytest.mark.slow
def test_servers_wait_for_all_in_the_second_loop_too(tmp_path: Path) -> None:
    ranks = run("second_loops", tmp_path)
    for name in ("od", "backup"):
        same_weights(ranks, name)
        assert ranks[0][name]["summary"]["samples"] == 128
        assert ranks[0][name]["summary"]["updates"] == 8, name  # four a loop, of a batch of each rank


@pytest.mark.slow  # and paces, once more: on a busy machine they differ by more than groups allow
def test_groups_are_found_in_the_second_loop_too(tmp_path: Path) -> None:
    ranks = run("grouped_loops", tmp_path)
    same_weights(ranks, "grouping")
    if 16 not in ranks[0]["first"]:
        raise RuntimeError("in the first loop they formed no group")
    assert 16 in ranks[0]["second"]


def test_two_synchronous_ranks_learn_what_one_machine_does(tmp_path: Path) -> None:
    ranks = run("sync_loops", tmp_path)

    def check(name: str, size: int, make_optimizer: MakeOptimizer = sgd, **options: Any) -> Updates:
        updates = updates_of(ranks, name)
        close(same_weights(ranks, name), on_one_machine(size, updates, make_optimizer, **options))
        summary = ranks[0][name]["summary"]
        assert summary == ranks[1][name]["summary"]
        assert summary["samples"] == sum(len(batch) for update in updates for batch in update)
        assert summary["updates"] == len(updates)
        assert summary["staleness"] == {"mean": 0.0, "max": 0}
        assert summary["reason"] == "finished"
        assert list(summary["busy"]) == ["worker-0", "worker-1"]
        assert all(0 <= share <= 1 for share in summary["busy"].values())
        return updates

    updates = check("uneven", 53)
    assert sum(len(batch) for update in updates for batch in update) == 106
    assert len({sum(map(len, update)) for update in updates}) > 1
    check("uneven adamw", 45, adamw)
    updates = check("uneven shards", 37, two_groups)
    assert [len(batch) for batch in updates[-1]] == [3, 2]
    check("one batch", 8)
    assert sorted(len(rank["one batch"]["loops"][0]) for rank in ranks) == [0, 1]
    check("balanced", 101)
    computed = [len(list(chain(*rank["balanced"]["loops"][0]))) for rank in ranks]
    assert computed[1] > computed[0], computed  # rank 0 is slow
    assert len(check("accumulated", 64)) == 2
    assert len(check("one batch left over", 48)) == 2
    check("clipped each", 32, clip_each=0.1)
    check("clipped sum", 32, clip_sum=0.1)
    for name in ("scheduled", "scheduled first"):
        check(name, 32, two_groups, gamma=0.7)
        assert ranks[0][name]["rates"] == pytest.approx([0.05 * 0.7**2, 0.2 * 0.7**2])
    check("bfloat16", 32, loss=loss_in_bfloat16)

    same_weights(ranks, "normed")
    first, second = (rank["normed"]["buffers"] for rank in ranks)
    assert first == second
    assert max(map(abs, first[0])) > 0

    weights = same_weights(ranks, "scaled")
    assert torch.isfinite(weights).all()
    assert [rank["scaled"]["scale"] for rank in ranks] == [64.0, 32.0]
    assert [rank["scaled"]["updates"] for rank in ranks] == [4, 4]
    assert all_indices(ranks, "scaled") == list(range(64))


def test_samples_are_handed_out_as_documented(tmp_path: Path) -> None:
    ranks = run("sampling_loops", tmp_path)
    for name in ("queue", "queue, loaded by others", "queue, async", "queue, stale"):
        assert all_indices(ranks, name) == sorted([*range(61)] * 3), name
        assert ranks[0][name]["summary"]["samples"] == 183, name
        assert ranks[0][name]["summary"] == ranks[1][name]["summary"], name
        same_weights(ranks, name)
        busy = ranks[0][name]["summary"]["busy"]
        worked = [bool(rank[name]["loops"][0]) for rank in ranks]  # who comes late may find the queue empty
        assert [share > 0 for share in busy.values()] == worked, (name, busy)
    for name in ("calls", "async calls"):
        for number in range(3):
            assert all_indices(ranks, name, number) == [*range(40)], (name, number)
        assert ranks[0][name]["summary"]["samples"] == 120
        same_weights(ranks, name)

    drawn = [list(chain(*rank["iid"]["loops"][0])) for rank in ranks]
    assert len(drawn[0]) + len(drawn[1]) == 128
    assert set(chain(*drawn)) <= set(range(64))
    assert all_indices(ranks, "iid") != sorted([*range(64)] * 2)  # with replacement
    assert drawn[0][:8] != drawn[1][:8]

    shares = [[set(chain(*loop)) for loop in rank["shards"]["loops"]] for rank in ranks]
    assert [len(share[0]) for share in shares] == [33, 32]
    assert shares[0][0].isdisjoint(shares[1][0])
    for rank, share in zip(ranks, shares, strict=True):
        assert share[0] == share[1]  # the same in every loop
        for loop in rank["shards"]["loops"]:
            assert sorted(chain(*loop)) == sorted([*share[0]] * 2)
        assert rank["shards"]["loops"][0] != rank["shards"]["loops"][1]  # in another order


def test_a_break_ends_the_loop_for_all_and_the_next_loop_is_whole(tmp_path: Path) -> None:
    ranks = run("broken_loops", tmp_path)
    for number, algorithm in enumerate(BROKEN):
        assert len(ranks[number % 2][algorithm]["loops"][0]) == 2
        assert all_indices(ranks, algorithm, 1) == [*range(80)], algorithm
        same_weights(ranks, algorithm)
        assert ranks[0][algorithm]["summary"] == ranks[1][algorithm]["summary"]
    same_weights(ranks, "held")
    assert [rank["held"]["steps"] for rank in ranks] == [2, 3]


def test_servers_keep_the_model_of_two_asynchronous_ranks(tmp_path: Path) -> None:
    ranks = run("async_loops", tmp_path)
    for name in ("two servers", "normed", "one batch left over", "watched"):
        same_weights(ranks, name)
    assert ranks[0]["two servers"]["summary"]["samples"] == 64
    assert ranks[0]["two servers"]["summary"]["updates"] == 8
    assert ranks[0]["normed"]["buffers"] == ranks[1]["normed"]["buffers"]
    left_over = ranks[0]["one batch left over"]
    assert left_over["summary"]["samples"] == 64  # of each half's three batches, two, in each of two loops
    assert [len(loop) for loop in left_over["loops"]] == [3, 3]
    assert ranks[1]["watched"]["saw others' updates"]
    assert ranks[1]["watched"]["came back to its own"]
    for rank in ranks:
        assert rank["watched"]["after the loop"]
        assert rank["watched"]["after the fleet"]


def test_ranks_that_differ_are_refused(tmp_path: Path) -> None:
    ranks = run("refused_loops", tmp_path)
    parts = {
        "model": "the model of rank 1 is 21 parameters in 2 layers",
        "optimizer": "'lr': 0.2",
        "kind": "the optimizer of rank 1 is AdamW",
        "algorithm": "the algorithm of rank 1 is AsyncSgd(), that of rank 0 is SyncSgd()",
        "other way round": "the algorithm of rank 1 is SyncSgd(), that of rank 0 is AsyncSgd()",
        "samples": "the number of samples of rank 1 is 17, that of rank 0 is 16",
    }
    for name, part in parts.items():
        for rank in ranks:
            message, seconds = rank[name]
            assert message.startswith("the ranks do not fit together: "), name
            assert part in message
            assert "rank 1" in message
            assert "rank 0" in message
            assert "\n" not in message
            assert seconds < 10
    assert [rank["nothing"][0] for rank in ranks] == ["", ""]


@pytest.mark.parametrize("scenario", ["failing_rank_1", "failing_rank_0"])
def test_a_rank_that_fails_ends_everything(tmp_path: Path, scenario: str) -> None:
    done, ranks = launch(scenario, tmp_path, limit_s=60)
    took_s = time.time() - float((tmp_path / "failed").read_text())
    assert done.returncode != 0
    assert took_s < 20
    assert ranks == []
    assert 'KeyError: "the user\'s own mistake"' in done.stderr


# ---- a fleet of one ----


@pytest.mark.parametrize("make_optimizer", [sgd, adamw, two_groups])
@pytest.mark.parametrize("algorithm", ["sync", "balanced"])
def test_a_fleet_of_one_is_a_plain_loop(algorithm: str, make_optimizer: MakeOptimizer) -> None:
    seen = train(algorithm, 50, make_optimizer, gamma=0.9, epochs=2)
    assert [len(batch) for batch in seen["loops"][0]] == [8] * 12 + [4]
    expected = on_one_machine(50, [[batch] for batch in seen["loops"][0]], make_optimizer, gamma=0.9)
    torch.testing.assert_close(torch.tensor(seen["weights"]), expected, rtol=1e-6, atol=1e-7)
    assert (seen["summary"]["samples"], seen["summary"]["updates"]) == (100, 13)
    assert list(seen["summary"]["busy"]) == ["worker-0"]


@pytest.mark.parametrize("make_optimizer", [sgd, adamw, two_groups])
@pytest.mark.parametrize(
    ("algorithm", "parameters"),
    [
        ("pace", {}),
        ("local", {"steps": 3}),
        ("diloco", {"steps": 3, "outer_lr": 1.0, "outer_momentum": 0.0}),
        ("wp", {"steps": 4}),
        ("simuparallel", {"steps": 5}),
    ],
)
def test_alone_many_algorithms_are_a_plain_loop(
    algorithm: str, parameters: dict[str, Any], make_optimizer: MakeOptimizer
) -> None:
    """Those that look ahead as well: with any optimizer, they see where it will be."""
    seen = train(algorithm, 50, make_optimizer, epochs=2, join={"parameters": parameters})
    expected = on_one_machine(50, [[batch] for batch in seen["loops"][0]], make_optimizer)
    close(torch.tensor(seen["weights"]), expected)


def test_alone_od_is_a_plain_loop_if_it_knows_the_momentum() -> None:
    parameters = {"form": "all-reduce", "warmup": 2, "local_momentum": 0.9}
    seen = train("od", 50, sgd, epochs=2, join={"parameters": parameters})
    close(torch.tensor(seen["weights"]), on_one_machine(50, [[batch] for batch in seen["loops"][0]], sgd))


@pytest.mark.parametrize(
    "algorithm", [name for name, cls in ownpace.ALGORITHMS.items() if not cls().has_servers and name != "layered"]
)
def test_alone_every_sample_counts(algorithm: str) -> None:
    seen = train(algorithm, 50)
    assert sum(map(len, seen["loops"][0])) == 50
    assert seen["summary"]["samples"] == 50


@pytest.mark.parametrize(("make_optimizer", "servers"), [(sgd, 1), (adamw, 1), (two_groups, 2)])
def test_a_server_has_the_optimizer_and_follows_its_schedule(make_optimizer: MakeOptimizer, servers: int) -> None:
    clip = 0.5 if servers > 1 else None
    options: dict[str, Any] = {"join": {"servers": servers}, "wrap": {"clip_norm": clip}}
    seen = train("async", 50, make_optimizer, gamma=0.9, schedule_first=servers > 1, **options)
    updates = [[batch] for batch in seen["loops"][0]]
    expected = on_one_machine(50, updates, make_optimizer, gamma=0.9, clip_sum=clip)
    torch.testing.assert_close(torch.tensor(seen["weights"]), expected, rtol=1e-5, atol=1e-6)


def batches_of_one(
    algorithm: str, **options: Any
) -> Iterator[tuple[Any, nn.Sequential, torch.optim.Optimizer, Iterator[Any]]]:
    net = make_net()
    optimizer = options.pop("optimizer", sgd)(net)
    with ownpace.join(algorithm) as fleet:
        fleet.wrap(net, optimizer)
        yield fleet, net, optimizer, fleet.batches(Numbers(options.pop("size", 32)), 8, **options)


def test_accumulating_two_batches_is_one_of_twice_the_size() -> None:
    seen = train("sync", 64, sgd, every=2)
    batches = seen["loops"][0]
    doubled = [[[*one, *other]] for one, other in zip(batches[::2], batches[1::2], strict=True)]
    close(torch.tensor(seen["weights"]), on_one_machine(64, doubled, sgd))
    assert seen["summary"]["updates"] == 4


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("algorithm", ["sync", "pace"])
def test_a_grad_scaler_skips_infinite_gradients(algorithm: str, fused: bool) -> None:
    def make_optimizer(net: nn.Sequential) -> torch.optim.Optimizer:
        return torch.optim.AdamW(net.parameters(), lr=0.01, fused=fused)

    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    used, skipped = [], 0
    for _, net, optimizer, batches in batches_of_one(algorithm, size=40, optimizer=make_optimizer):
        for number, (x, y, indices) in enumerate(batches):
            before = flat(net)
            scaler.scale(mean_loss(net, x, y) * (torch.inf if number == 2 else 1)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if torch.equal(flat(net), before):
                skipped += 1
            else:
                used.append([indices.tolist()])
    assert (skipped, len(used)) == (1, 4)
    assert scaler.get_scale() == 512.0
    torch.testing.assert_close(flat(net), on_one_machine(40, used, make_optimizer), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("algorithm", ["sync", "pace"])
def test_evaluating_leaves_the_model_as_it_was(algorithm: str) -> None:
    def judge(net: nn.Module) -> tuple[bool, bool]:
        return any(module.training for module in net.modules()), torch.is_grad_enabled()

    def refuse(net: nn.Module) -> None:
        raise KeyError("judge")

    for fleet, net, optimizer, batches in batches_of_one(algorithm):
        assert fleet.evaluate(judge) == (False, False)
        net[1].eval()  # a user may freeze a part
        for x, y, _ in batches:
            assert fleet.evaluate(judge) == (False, False)
            assert [module.training for module in net] == [True, False, True, True]
            assert net.training
            with pytest.raises(KeyError, match="judge"):
                fleet.evaluate(refuse)
            assert net.training
            mean_loss(net, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert torch.equal(fleet.evaluate(flat), flat(net))


def test_a_compiled_model_trains() -> None:
    net = make_net()
    optimizer = sgd(net)
    before = flat(net)
    used = []
    with ownpace.join() as fleet:
        model, optimizer = fleet.wrap(torch.compile(net, backend="aot_eager"), optimizer)
        for x, y, indices in fleet.batches(Numbers(24), 8):
            used.append([indices.tolist()])
            mean_loss(model, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert not torch.equal(flat(net), before)
    close(flat(net), on_one_machine(24, used, sgd))


# ---- what is refused ----


def test_names_that_nobody_knows_are_refused() -> None:
    with pytest.raises(ownpace.InputError, match="unknown algorithm 'snyc'; did you mean 'sync'"):
        ownpace.join("snyc")
    with pytest.raises(ownpace.InputError, match="unknown backend 'mpi'"):
        ownpace.join(backend="mpi")
    with pytest.raises(ownpace.InputError, match="staleness"):
        ownpace.join("stale", parameters={"staleness": -1})
    net = make_net()
    with ownpace.join() as fleet:
        fleet.wrap(net, sgd(net))
        with pytest.raises(ownpace.InputError, match="unknown sampling 'queu'; did you mean 'queue'"):
            fleet.batches(Numbers(8), 8, sampling="queu")
        with pytest.raises(ownpace.InputError, match="batch_size is 0"):
            fleet.batches(Numbers(8), 0)


def test_a_model_and_an_optimizer_that_do_not_fit_are_refused() -> None:
    net, other = make_net(), make_net()
    with ownpace.join() as fleet:
        with pytest.raises(ownpace.InputError, match=r"it lacks 3\.weight"):
            fleet.wrap(net, torch.optim.SGD(net[0].parameters(), lr=0.1))
        with pytest.raises(ownpace.InputError, match="it has 8 parameters, the model 4"):
            fleet.wrap(net, torch.optim.SGD([*net.parameters(), *other.parameters()], lr=0.1))
        for call in (lambda: fleet.batches(Numbers(8), 8), lambda: fleet.evaluate(flat)):
            with pytest.raises(ownpace.InputError, match=r"call fleet\.wrap"):
                call()
        fleet.wrap(net, sgd(net))
        with pytest.raises(ownpace.InputError, match="wrap was called twice"):
            fleet.wrap(other, sgd(other))


def test_steps_that_belong_to_no_batch_are_refused() -> None:
    outside = pytest.raises(ownpace.InputError, match=r"outside of fleet\.batches")
    net = make_net()
    optimizer = sgd(net)
    with ownpace.join("sync") as fleet:
        fleet.wrap(net, optimizer)
        with outside:
            optimizer.step()
        for number, (x, y, _) in enumerate(fleet.batches(Numbers(32), 8)):
            mean_loss(net, x, y).backward()
            with pytest.raises(ownpace.InputError, match="was given a closure"):
                optimizer.step(lambda: 0.0)
            optimizer.step()
            if number == 0:
                with pytest.raises(ownpace.InputError, match="twice for one batch"):
                    optimizer.step()
                with pytest.raises(ownpace.InputError, match="within a loop"):
                    fleet.batches(Numbers(32), 8)
            optimizer.zero_grad()
        with outside:
            optimizer.step()
    with outside:
        optimizer.step()
    assert fleet.summary.updates == 4


def test_a_batch_whose_gradient_was_thrown_away_counts_nothing() -> None:
    seen: list[Event] = []
    with ownpace.join("sync", on_event=seen.append, detail=True) as fleet:
        net, optimizer = wrapped(fleet)
        for number, (x, y, _) in enumerate(fleet.batches(Numbers(40), 8)):
            mean_loss(net, x, y).backward()
            if number != 2:
                optimizer.step()
            optimizer.zero_grad()
    assert [event.samples for event in seen if isinstance(event, Update)] == [8] * 4


def test_a_model_that_was_moved_after_wrap_is_refused() -> None:
    with ownpace.join("sync") as fleet:
        net, _ = wrapped(fleet)
        net.double()
        with pytest.raises(ownpace.InputError, match="move or convert a model before that"):
            fleet.batches(Numbers(40), 8)


def test_a_step_without_a_backward_pass_is_refused() -> None:
    with ownpace.join("sync") as fleet:
        net, optimizer = wrapped(fleet)
        for x, y, _ in fleet.batches(Numbers(16), 8):
            with pytest.raises(ownpace.InputError, match="no parameter has a gradient"):
                optimizer.step()
            mean_loss(net, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()


def test_an_optimizer_may_go_from_one_fleet_to_the_next() -> None:
    net = make_net()
    optimizer = sgd(net)
    for _ in range(2):
        with ownpace.join("sync") as fleet:
            fleet.wrap(net, optimizer)
            for x, y, _ in fleet.batches(Numbers(16), 8):
                mean_loss(net, x, y).backward()
                optimizer.step()
                optimizer.zero_grad()
        assert fleet.summary is not None
        assert fleet.summary.updates == 2


def test_servers_refuse_an_optimizer_that_has_made_steps() -> None:
    net = make_net()
    optimizer = sgd(net)
    net(Numbers(4).x).sum().backward()
    optimizer.step()
    with ownpace.join("async") as fleet:
        fleet.wrap(net, optimizer)
        with pytest.raises(ownpace.InputError, match="cannot go to parameter servers"):
            fleet.batches(Numbers(16), 8)


def test_a_negative_norm_is_refused() -> None:
    with ownpace.join("sync") as fleet, pytest.raises(ownpace.InputError, match="clip_norm is -1"):
        fleet.wrap(make_net(), sgd(make_net()), clip_norm=-1.0)


def wrapped(fleet: Any) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    net = make_net()
    return fleet.wrap(net, sgd(net))


if __name__ == "__main__":
    main()
