"""Steps that are made range by range: the bits of whole ones, and nothing of those that never end."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ownpace.core.contract.values import Shard
from ownpace.core.learning.layout import Layout
from ownpace.core.learning.optimizer import ELEMENTWISE, FlatOptimizer, OptimizerSpec

MODEL = nn.Sequential(nn.Linear(37, 53), nn.Linear(53, 11), nn.Linear(11, 1))
LAYOUT = Layout(MODEL)
RANGES = [slice(0, 53 * 37), slice(53 * 37, LAYOUT.size - 12), slice(LAYOUT.size - 12, LAYOUT.size)]
SPECS = [
    *(OptimizerSpec(name=name, lr=0.05) for name in ELEMENTWISE),
    OptimizerSpec(momentum=0.9),
    OptimizerSpec(momentum=0.9, weight_decay=0.1),
    OptimizerSpec(momentum=0.9, nesterov=True, weight_decay=0.1),
    OptimizerSpec(name="adamw", weight_decay=0.1),
    OptimizerSpec(name="rmsprop", momentum=0.5),
]


def make(spec: OptimizerSpec) -> FlatOptimizer:
    start = torch.zeros(LAYOUT.size)
    return FlatOptimizer(LAYOUT, Shard(0, 0, LAYOUT.size), start, spec.build, clip_norm=spec.clip_norm)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.name}-{spec.momentum}-{spec.nesterov}")
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_ranges_make_the_bits_of_a_whole_step(spec, order):
    torch.manual_seed(0)
    optimizer, other = make(spec), make(spec)
    start = torch.randn(LAYOUT.size)
    whole, state = start.clone(), optimizer.initial_state()
    values, parts = start.clone(), other.initial_state()
    spare, made = None, 0
    for number in range(6):
        total, factor = torch.randn(LAYOUT.size), 1 / (number + 1)
        whole, state = optimizer.step(whole, state, total, samples=7, lr_factor=factor)
        steps = other.in_ranges((values, parts), samples=7, lr_factor=factor)
        if steps is None:
            assert not made, "only before there is a state"
            values, parts = other.step(values, parts, total, samples=7, lr_factor=factor)
            continue
        steps.begin(spare)
        before, entry = values.clone(), {key: _copy(value) for key, value in parts[0].items()}
        for place in order:
            steps.step(RANGES[place], total[RANGES[place]])
        made += 1
        # Until the step is whole, what was before is as it was.
        assert torch.equal(values, before)
        assert all(_same(parts[0][key], value) for key, value in entry.items())
        steps.keep_state()
        spare, values, parts = (values, parts[0]), steps.values, [steps.state]
        assert torch.equal(values, whole)
        assert parts[0].keys() == state[0].keys()
        assert all(_same(parts[0][key], value) for key, value in state[0].items())
    assert made >= 5


@pytest.mark.parametrize("spec", [OptimizerSpec(clip_norm=1.0), OptimizerSpec(custom=torch.optim.Adafactor)])
def test_what_needs_the_whole_gradient_is_not_divided(spec):
    optimizer = make(spec)
    state = optimizer.initial_state()
    values, state = optimizer.step(torch.zeros(LAYOUT.size), state, torch.ones(LAYOUT.size))
    assert optimizer.in_ranges((values, state), samples=1, lr_factor=1.0) is None


def test_a_momentum_that_is_off_for_now_is_kept():
    optimizer = make(OptimizerSpec(momentum=0.9))
    values, state = optimizer.step(torch.zeros(LAYOUT.size), optimizer.initial_state(), torch.ones(LAYOUT.size))
    optimizer.settings.assign([0.0 if number == 0.9 else number for number in optimizer.settings.read()])
    steps = optimizer.in_ranges((values, state), samples=1, lr_factor=1.0)
    assert steps is not None
    steps.begin((torch.zeros(LAYOUT.size), {"momentum_buffer": torch.full((LAYOUT.size,), 7.0)}))
    for part in RANGES:
        steps.step(part, torch.ones(LAYOUT.size)[part])
    steps.keep_state()
    assert torch.equal(steps.values, values - 0.1)
    assert _same(steps.state["momentum_buffer"], state[0]["momentum_buffer"])


def _copy(value: object) -> object:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _same(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    return one == other
