"""A server's copy of a user's optimizer: its settings are those of the groups whose layers it holds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from ownpace.core.contract.values import Gradient, Shard
from ownpace.core.learning.group_settings import GroupSettings
from ownpace.core.learning.layout import Layout
from ownpace.core.learning.optimizer import FlatOptimizer
from ownpace.engines.process.node.optimizer_copy import OptimizerCopy
from ownpace.engines.process.node.parameters import FlatParameters

SHAPES = [(2, 3), (3,), (4,), (5,)]


@pytest.mark.parametrize("layers", [slice(0, 1), slice(1, 3), slice(3, 4), slice(0, 4)])
def test_a_shard_steps_with_the_settings_of_its_own_groups(layers):
    theirs = [nn.Parameter(torch.ones(shape)) for shape in SHAPES]
    groups: list[dict[str, Any]] = [
        {"params": theirs[0], "lr": torch.tensor(0.5)},
        {"params": [theirs[1], theirs[3]], "betas": (0.5, 0.75)},
        {"params": theirs[2], "weight_decay": 0.25},
    ]
    optimizer = torch.optim.Adam(groups, lr=0.1, foreach=False)
    copy = OptimizerCopy.of(optimizer, theirs)
    layout = Layout.of([(f"layer {n}", torch.Size(shape), False) for n, shape in enumerate(SHAPES)])
    mine = layout.layers[layers]
    shard = Shard(0, mine[0].start, mine[-1].stop)
    build, places = copy.for_shard(layout.layers, shard)
    values = torch.ones(shard.stop - shard.start)
    held = FlatParameters(values, FlatOptimizer(layout, shard, values, build), places)
    settings = GroupSettings([optimizer])
    for step in range(3):
        optimizer.param_groups[0]["lr"].mul_(0.5)
        optimizer.param_groups[1]["betas"] = (0.25 * step, 0.5)
        optimizer.param_groups[2]["weight_decay"] = 0.5 * step
        held.set_settings(settings.read())
        held.step(Gradient(torch.full_like(values, 2.0), 2, (step,)), 1.0)
        for parameter in theirs:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    expected = torch.cat([parameter.detach().reshape(-1) for parameter in theirs[layers]])
    torch.testing.assert_close(held.values, expected)
