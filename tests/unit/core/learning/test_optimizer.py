"""Any torch optimizer as a pure function."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from ownpace.core.contract.errors import InputError
from ownpace.core.contract.values import Shard
from ownpace.core.learning.group_settings import GroupSettings
from ownpace.core.learning.layout import Layout
from ownpace.core.learning.optimizer import ELEMENTWISE, FlatOptimizer, OptimizerSpec, clipped

LAYERWISE = {"adafactor": lambda p: torch.optim.Adafactor(p, lr=0.1)}
ALL = {
    **{name: partial(cls, lr=0.1) for name, cls in ELEMENTWISE.items()},
    **LAYERWISE,
    "sgd with all": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    "sgd with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "sgd with momentum and decay": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "sgd with decay": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01),
    "sgd with dampening": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5),
    "sgd that climbs": lambda p: torch.optim.SGD(p, lr=0.1, maximize=True),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
}


def make_module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))


def flat(module: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def gradients(count: int, size: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(size, generator=generator) for _ in range(count)]


def whole(layout: Layout) -> Shard:
    return Shard(0, 0, layout.size)


@pytest.mark.parametrize("build", ALL.values(), ids=ALL)
def test_steps_are_those_of_torch(build):
    module = make_module()
    layout, values = Layout(module), flat(module)
    ours = FlatOptimizer(layout, whole(layout), values, build)
    state = ours.initial_state()
    theirs = build(module.parameters())
    for gradient in gradients(5, layout.size):
        values, state = ours.step(values, state, 4 * gradient, samples=4, donate=True)
        for parameter, part in zip(module.parameters(), layout.views(gradient), strict=True):
            parameter.grad = part.clone()
        theirs.step()
    torch.testing.assert_close(values, flat(module), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("build", ALL.values(), ids=ALL)
def test_a_step_not_taken_leaves_no_trace(build):
    module = make_module()
    layout, start = Layout(module), flat(module)
    first, second, third = gradients(3, layout.size)
    optimizer = FlatOptimizer(layout, whole(layout), start, build)
    before, before_state = optimizer.step(start, optimizer.initial_state(), first)
    kept = before.clone()

    plain, _ = optimizer.step(before, before_state, second)
    optimizer.step(before, before_state, third)  # peeked at, thrown away
    again, _ = optimizer.step(before, before_state, second)
    assert torch.equal(before, kept)
    assert torch.equal(plain, again)


def test_several_groups_keep_their_own_settings():
    def build(parameters):
        weights: list[torch.Tensor] = []
        biases: list[torch.Tensor] = []
        for parameter in parameters:
            (weights if parameter.dim() > 1 else biases).append(parameter)
        groups = [{"params": group, "lr": lr} for group, lr in ((weights, 0.1), (biases, 1.0)) if group]
        return torch.optim.SGD(groups)

    module = make_module()
    layout, values = Layout(module), flat(module)
    # Seen as one vector, everything would be a bias: the layers must be seen as they are.
    optimizer = FlatOptimizer(layout, whole(layout), values, build)
    stepped, _ = optimizer.step(values, optimizer.initial_state(), torch.ones(layout.size))
    moved = layout.views(values - stepped)
    for layer, part in zip(layout.layers, moved, strict=True):
        expected = 0.1 if len(layer.shape) > 1 else 1.0
        torch.testing.assert_close(part, torch.full(layer.shape, expected), rtol=1e-5, atol=1e-6)


def test_lr_factor_scales_every_group():
    module = make_module()
    layout, values = Layout(module), flat(module)
    optimizer = FlatOptimizer(layout, whole(layout), values, OptimizerSpec(lr=0.5).build)
    stepped, _ = optimizer.step(values, optimizer.initial_state(), torch.ones(layout.size), lr_factor=0.1)
    torch.testing.assert_close(values - stepped, torch.full_like(values, 0.05), rtol=1e-5, atol=1e-6)
    again, _ = optimizer.step(values, optimizer.initial_state(), torch.ones(layout.size))
    torch.testing.assert_close(values - again, torch.full_like(values, 0.5), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_gradients_are_clipped_as_torch_clips_them(name):
    module = make_module()
    layout, values = Layout(module), flat(module)
    spec = OptimizerSpec(name=name, lr=0.1, clip_norm=2.0)
    ours = FlatOptimizer(layout, whole(layout), values, spec.build, clip_norm=spec.clip_norm)
    theirs, state = spec.build(module.parameters()), ours.initial_state()
    for gradient in (3 * gradients(1, layout.size)[0], 0.01 * gradients(1, layout.size)[0]):  # one too long, one not
        peeked, _ = ours.step(values, state, 4 * gradient, samples=4)
        values, state = ours.step(values, state, 4 * gradient, samples=4, donate=True)
        assert torch.equal(peeked, values)
        for parameter, part in zip(module.parameters(), layout.views(gradient), strict=True):
            parameter.grad = part.clone()
        nn.utils.clip_grad_norm_(module.parameters(), 2.0)
        theirs.step()
    torch.testing.assert_close(values, flat(module), rtol=1e-5, atol=1e-6)


def test_a_gradient_of_next_to_nothing_is_clipped_as_torch_clips_it():
    gradient = torch.tensor([3e-6, 4e-6])
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = gradient.clone()
    nn.utils.clip_grad_norm_([parameter], 1e-6)
    torch.testing.assert_close(clipped(gradient, 1e-6), parameter.grad, rtol=1e-5, atol=0.0)
    assert torch.equal(clipped(torch.zeros(2), 1e-6), torch.zeros(2))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"nesterov": True}, "momentum is 0.0"),
        ({"nesterov": True, "momentum": 0.9, "name": "rmsprop"}, "the optimizer is rmsprop"),
        ({"clip_norm": 0.0}, "clip_norm is 0.0; it must be a finite number above 0"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        OptimizerSpec(**settings)


def test_optimizers_that_need_more_than_a_gradient_are_refused():
    module = make_module()
    with pytest.raises(InputError, match="LBFGS cannot be used"):
        FlatOptimizer(Layout(module), whole(Layout(module)), flat(module), torch.optim.LBFGS)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "sdg"}, "unknown optimizer 'sdg'; did you mean 'sgd'"),
        ({"lr": 0.0}, "lr is 0.0; it must be a finite number above 0"),
        ({"momentum": -0.1}, "momentum is -0.1"),
        ({"name": "adam", "momentum": 0.9}, "adam has none"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(InputError, match=message):
        OptimizerSpec(**settings)


@pytest.mark.parametrize("build", ALL.values(), ids=ALL)
def test_a_step_in_place_can_be_seen(build):
    """Recorded gradients (CUDA graphs) copy parameters only if they have changed."""
    module = make_module()
    layout, values = Layout(module), flat(module)
    optimizer = FlatOptimizer(layout, whole(layout), values, build)
    before = values._version
    stepped, _ = optimizer.step(values, optimizer.initial_state(), torch.ones(layout.size), in_place=True)
    assert stepped is values
    assert values._version > before


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_assigned_settings_are_those_of_the_next_step(kind):
    """Also of SGD, which is written out, and whose momentum may come and go."""
    module = make_module()
    layout, values = Layout(module), flat(module)
    build = partial(kind, lr=0.1)
    ours, theirs = FlatOptimizer(layout, whole(layout), values, build), build(module.parameters())
    settings, state = GroupSettings([theirs]), ours.initial_state()
    schedule = [(0.9, 0.0, False), (0.5, 0.1, False), (0.0, 0.2, False), (0.75, 0.1, False), (0.9, 0.0, True)]
    for gradient, (momentum, decay, climbs) in zip(gradients(5, layout.size), schedule, strict=True):
        (group,) = theirs.param_groups
        group.update({"lr": 0.1 + decay, "weight_decay": decay, "maximize": climbs})
        group.update({"momentum": momentum} if kind is torch.optim.SGD else {"betas": (momentum, 0.9)})
        ours.settings.assign(settings.read())
        values, state = ours.step(values, state, 4 * gradient, samples=4, donate=True)
        for parameter, part in zip(module.parameters(), layout.views(gradient), strict=True):
            parameter.grad = part.clone()
        theirs.step()
        torch.testing.assert_close(values, flat(module), rtol=1e-5, atol=1e-6)
