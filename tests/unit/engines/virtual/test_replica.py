"""Parameters and the optimizer's state, shared as long as nobody would notice."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

from ownpace.core.contract.values import Gradient, Shard
from ownpace.core.learning.layout import Layout
from ownpace.core.learning.optimizer import FlatOptimizer, OptimizerSpec, clone
from ownpace.engines.virtual.replica import Replica

LAYOUT = Layout.of([("weight", torch.Size([3]), False)])


def gradient() -> Gradient:
    return Gradient(torch.ones(3), 1, (0,), 0.0)


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_what_is_kept_stays_as_it_was_whatever_memory_later_steps_are_made_with(name: Literal["sgd", "adamw"]):
    spec = OptimizerSpec(name=name, lr=0.1, momentum=0.9 if name == "sgd" else 0.0)
    optimizer = FlatOptimizer(LAYOUT, Shard(0, 0, 3), torch.ones(3), spec.build)
    replica = Replica(torch.ones(3))
    for memory in (0, 1, 2):
        replica = replica.step(optimizer, gradient(), 1.0, memory)
    kept = replica.kept()
    before = {memory: clone(state) for memory, state in kept.states.items()}
    for memory in (0, 1, 2):
        replica = replica.step(optimizer, gradient(), 1.0, memory)
    torch.testing.assert_close(kept.states, before, rtol=0, atol=0)
