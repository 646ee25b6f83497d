"""A small model, its data, and a user's loop around it; and what plain torch makes of the same batches."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import Dataset

import ownpace
from ownpace.drop_in import Joined

RANK = int(os.environ.get("RANK", "0"))
MakeOptimizer = Callable[[nn.Sequential], torch.optim.Optimizer]


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
    groups: list[dict[str, Any]] = [
        {"params": net[0].parameters(), "lr": 0.05, "weight_decay": 0.01},
        {"params": net[3].parameters()},
    ]
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
    slow_s: float = 0.0,
    calls: int = 1,
    break_at: tuple[int, int] | None = None,
    on_batch: Callable[[int, int], None] | None = None,
    **batches: Any,
) -> dict[str, Any]:
    """A user's loop. Returns what this rank saw.

    The rank `slow_rank` computes each batch many times, and for `slow_s` longer than that. `break_at` is a rank and the
    number of the batch at which it leaves its first loop. `on_batch` is told the numbers of each loop and batch.
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
                if on_batch is not None:
                    on_batch(call, len(loops[-1]))
                loops[-1].append(indices.tolist())
                if fleet.rank == slow_rank:
                    for _ in range(20):
                        net(x)
                    time.sleep(slow_s)
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


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def wrapped(fleet: Joined) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    net = make_net()
    return fleet.wrap(net, sgd(net))
