"""How long sums and messages take between workers."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from ownpace.core.contract.roles import Worker
from ownpace.core.contract.values import Gradient
from ownpace.measuring.fit import fit_sums

SMALL = 256
"""Numbers in a vector that shows latency."""
LEAST, MOST = 1 << 18, 1 << 24
"""Numbers in one that shows bandwidth."""
FEWEST, OFTEN = 3, 30
FARTHEST = 16
"""The first worker sends to at most this many others."""
B = TypeVar("B", Gradient, Tensor)


@dataclass(frozen=True)
class Links:
    """What was found between workers; all zero where there is one."""

    bandwidth_bytes_per_s: float
    """Of each machine's link, such that sums take as long as they did."""
    latency_s: float
    sum_s: float
    """Of a whole gradient, once the last worker has come."""
    message_s: float
    """Of an empty message from the first worker to another: the mean over those."""
    message_bytes_per_s: float
    slowest_message_s: float
    """To the farthest of them."""
    slowest_message_bytes_per_s: float


async def measure_links(me: Worker, gradient: Gradient, sum_s: float, seconds: float) -> Links:
    """Time sums of vectors and messages, for about so long; `sum_s` is how long the gradient's took, here."""
    num_workers = len(me.workers)
    if num_workers == 1:
        return Links(*[0.0] * 7)
    numbers = min(MOST, max(LEAST, len(gradient.total)))
    # Where gradients are: what sums on GPUs takes no other vectors.
    zeros = partial(torch.zeros, device=gradient.total.device)
    small = await _sum_s(me, zeros(SMALL), seconds / 4)
    large = await _sum_s(me, zeros(numbers), seconds / 4)
    # The last to come waits for nobody: the shortest time of all is that of the sum itself.
    sum_s = await least(me, sum_s, gradient.total.device)
    points = [(4.0 * SMALL, small), (4.0 * numbers, large)]
    fit = fit_sums(num_workers, points, (gradient.total.nbytes, sum_s))
    others = min(num_workers - 1, FARTHEST)
    found = zeros(others, 2)
    for other in range(1, others + 1):
        found[other - 1] = torch.tensor(
            await _messages(me, other, torch.zeros_like(gradient.total), seconds / 2 / others)
        )
    found = await me.all_reduce(found)  # the first worker's: those of all others are zero
    latencies, rates = found[:, 0].tolist(), found[:, 1].tolist()
    mean_rate = len(rates) / sum(1 / rate for rate in rates)
    messages = statistics.fmean(latencies), mean_rate, max(latencies), min(rates)
    return Links(fit.bandwidth_bytes_per_s, fit.latency_s, sum_s, *messages)


async def timed(me: Worker, body: B) -> tuple[B, float]:
    """The sum of what all workers give, with how long it took: all begin it together."""
    values = body.total if isinstance(body, Gradient) else body
    settle(await me.all_reduce(values.new_zeros(1)))
    begun = time.perf_counter()
    found = await me.all_reduce(body)
    settle(values)
    return found, time.perf_counter() - begun


def settle(values: Tensor) -> None:
    """Wait until a GPU has done what was asked of it."""
    if values.is_cuda:
        torch.cuda.synchronize(values.device)


async def _sum_s(me: Worker, values: Tensor, seconds: float) -> float:
    """How long a vector's sum takes: the median over several."""
    _, once = await timed(me, values)
    took = []
    for _ in range(await _times(me, seconds, once, values.device)):
        _, one = await timed(me, values)
        took.append(one)
    return await least(me, statistics.median(took), values.device)


async def _times(me: Worker, seconds: float, once: float, device: torch.device) -> int:
    """How often there is time for something: the same number on all workers."""
    mean = float(await me.all_reduce(torch.tensor([once], device=device))) / len(me.workers)
    return min(OFTEN, max(FEWEST, int(seconds / max(mean, 1e-6))))


async def least(me: Worker, seconds: float, device: torch.device) -> float:
    """The shortest of all workers' times: in a sum, that of the last to come, who waits for none."""
    times = torch.zeros(len(me.workers), device=device)
    times[me.rank] = seconds
    return float((await me.all_reduce(times)).min())


async def _messages(me: Worker, other: int, large: Tensor, seconds: float) -> tuple[float, float]:
    """Latency and bytes per second from the first worker to another; zero for all others.

    `large` has the model's size, and is no larger: no node takes a message that cannot be one of a run.
    """
    once = 0.0
    if me.rank in (0, other):
        await _there_and_back(me, other, large)  # connects
        once = await _there_and_back(me, other, large)
    often = await _times(me, seconds, once * len(me.workers) / 2, large.device)
    if me.rank not in (0, other):
        return 0.0, 0.0
    latency = statistics.median([await _there_and_back(me, other, large[:1]) for _ in range(often)]) / 2
    whole = statistics.median([await _there_and_back(me, other, large) for _ in range(often)])
    if me.rank:
        return 0.0, 0.0
    # The answer is small: it takes one latency.
    return latency, large.nbytes / max(whole - 2 * latency, 1e-9)


async def _there_and_back(me: Worker, other: int, values: Tensor) -> float:
    """Send a vector, and wait for a word in return."""
    first, second = me.workers.members[0], me.workers.members[other]
    begun = time.perf_counter()
    if me.rank == 0:
        me.send(second, values)
        await me.receive(second)
    else:
        await me.receive(first)
        me.send(first)
    return time.perf_counter() - begun
