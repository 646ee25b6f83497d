"""A task whose parameters count how often each sample has been learnt from: nothing twice, and nothing left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from ownpace.core.learning.claims import Places
from ownpace.core.learning.optimizer import OptimizerSpec
from ownpace.core.learning.plain_state import PlainState
from ownpace.core.learning.sampling import Permutations
from ownpace.core.learning.seeds import Purpose
from ownpace.core.learning.task import Samples, Task, TensorSamples

MOST = 1000
"""How often the rarest sample of one update can be in it: others without a bound go on while one machine pauses.

Fractions with smaller denominators are further from each other than half of one by this, and numbers of single
precision that are in such a proportion are nearer.
"""


class SampleCounters(nn.Module):
    """Two layers, so that two servers can share them, each with a number for every sample."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.low = nn.Parameter(torch.zeros(size))
        self.high = nn.Parameter(torch.zeros(size))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.low[inputs] + self.high[inputs]


@dataclass(frozen=True, kw_only=True)
class CountedSamples(Task):
    """The gradient of sample i is 1 at place i of each layer, and 0 elsewhere, wherever it is computed."""

    size: int = 97

    def model(self) -> nn.Module:
        return SampleCounters(self.size)

    def train_samples(self) -> Samples:
        return TensorSamples(torch.arange(self.size), torch.zeros(self.size))

    def test_samples(self) -> Samples:
        return TensorSamples(torch.arange(2), torch.zeros(2))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.mean()

    def num_right(self, outputs: Tensor, targets: Tensor) -> None:
        return None


class CountingOptimizer(torch.optim.Optimizer):
    """Adds to each parameter how often its sample is in the gradient, whatever learning rates and weights."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float = 1.0) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # of no use here
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(_counts(parameter.grad))


def _counts(gradient: Tensor) -> Tensor:
    """Whole numbers in proportion to a gradient: as small as can be, since the samples of an update are few."""
    learnt = gradient[gradient > 0]
    if not len(learnt):
        return torch.zeros_like(gradient)
    ratios = gradient.double() / learnt.min().double()
    for fewest in range(1, MOST):
        counts = (fewest * ratios).round()
        if (counts - fewest * ratios).abs().max() < 0.5 / MOST:
            return counts.to(gradient.dtype)
    raise AssertionError("these are no counts of samples")


def counting() -> OptimizerSpec:
    """The optimizer for it."""
    return OptimizerSpec(custom=CountingOptimizer)


def miscounted(
    state: PlainState, size: int, seed: int = 0, *, may_drop: bool = False, may_differ: bool = False
) -> list[str]:
    """Which samples the parameters of a checkpoint have learnt from more or less often than its queue says, in words.

    The queue's places that are not left have been dealt and learnt from, each once.

    Args:
        state: The checkpoint.
        size: How many samples there are.
        seed: The run's.
        may_drop: At most once.
        may_differ: By one of the two layers at least, where a server of its own holds each: one of them may have died,
            or a link may have been cut when only the other had got a gradient.
    """
    left = cast(Sequence[Places], state["left"])
    replicas = cast(Sequence[dict[str, Tensor]], state["replicas"])
    expected = torch.zeros(size)
    begin = 0
    order = Permutations(size, seed, Purpose.QUEUE)
    for start, stop in left:
        if begin < start:
            indices = order.indices(begin, start - begin)
            expected += torch.bincount(indices, minlength=size)
        begin = stop
    found = replicas[0]["parameters"].view(2, size)
    missing = found.amax(0).expand_as(found) < expected if may_differ else found < expected
    wrong = (found > expected) | (missing & (not may_drop))
    return [
        f"sample {index} of layer {layer} was learnt from {int(counts[index])} times instead of {int(expected[index])}"
        for layer, counts in enumerate(found)
        for index in wrong[layer].nonzero().flatten().tolist()
    ]


__all__ = ["CountedSamples", "counting", "miscounted"]
