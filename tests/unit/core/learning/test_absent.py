"""Layers without a gradient: −0.0 stands for none, sums keep it, and optimizers leave such layers alone."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from ownpace.core.contract.values import Gradient, Shard, union
from ownpace.core.learning.layout import Layout
from ownpace.core.learning.optimizer import ELEMENTWISE, Build, FlatOptimizer, State

SHAPES = [(2, 3), (3,), (4, 2)]
LAYOUT = Layout.of([(f"layer {n}", torch.Size(shape), False) for n, shape in enumerate(SHAPES)])
WHOLE = Shard(0, 0, LAYOUT.size)
ABSENT = [False, True, False]


def total(*absent: int, seed: int = 0) -> Tensor:
    values = torch.randn(LAYOUT.size, generator=torch.Generator().manual_seed(seed))
    for layer in absent:
        LAYOUT.views(values)[layer].fill_(-0.0)
    return values


def gradient(*absent: int, seed: int = 0, versions: tuple[int, ...] = (0,)) -> Gradient:
    return Gradient(total(*absent, seed=seed), 4, versions, partial=bool(absent))


def test_whatever_is_done_to_gradients_keeps_layers_absent() -> None:
    a, b = gradient(1), gradient(1, seed=1)
    nothing = Gradient(torch.full((LAYOUT.size,), -0.0), 0, (0,))
    correction = a.mean + 0.1 * a.mean.square() * torch.arange(LAYOUT.size)
    for made in (
        a + b,
        a + nothing,
        nothing + a,
        union([a, b, nothing]),
        a.scaled(0.5),
        a.noting(x=1.0),
        a.part(WHOLE),
    ):
        assert made.partial
        assert LAYOUT.absent(made.total) == ABSENT
    assert LAYOUT.absent(a.with_mean(correction).total) == ABSENT
    two = gradient(1, versions=(0, 0)).part(Shard(1, 0, LAYOUT.layers[1].stop))
    assert two.partial
    assert Layout.of([("layer 0", torch.Size((2, 3)), False), ("layer 1", torch.Size((3,)), False)]).absent(
        two.total
    ) == [False, True]


def test_a_layer_that_one_of_two_has_is_there() -> None:
    both = gradient(1) + gradient(0)
    assert both.partial
    assert LAYOUT.absent(both.total) == [False] * 3
    assert not (gradient() + gradient()).partial


def test_zero_is_a_gradient_and_so_is_what_only_begins_like_none() -> None:
    values = total(1)
    LAYOUT.views(values)[0].zero_()
    LAYOUT.views(values)[2][0, 0] = -0.0
    assert LAYOUT.absent(values) == ABSENT


def test_counts_of_models_add_up() -> None:
    one = Gradient(total(), 8, (0,), counts=(8, 8, 0))
    other = Gradient(total(), 8, (0,), counts=(0, 0, 8))
    nothing = Gradient(total(), 0, (0,))
    assert (one + other).counts == union([nothing, one, other]).counts == (8, 8, 8)
    assert ((one + other).new_samples, (one + other).samples_of(0), one.samples_of(1)) == (8, 8, 0)
    assert (nothing.new_samples, gradient().new_samples, gradient().samples_of(1)) == (0, 4, 4)
    assert one.scaled(2.0).counts == one.noting(x=1.0).counts == one.part(WHOLE).counts == (8, 8, 0)


@pytest.mark.parametrize("name", [*ELEMENTWISE, "adafactor", "sgd with all"])
def test_optimizers_skip_absent_layers_and_keep_their_state(name: str) -> None:
    """One of one vector begins to see layers at the first gradient that some have none of."""
    builds: dict[str, Build] = {
        **{kind: partial(cls, lr=0.05) for kind, cls in ELEMENTWISE.items()},
        "adafactor": partial(torch.optim.Adafactor, lr=0.05),
        "sgd with all": partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.1),
    }
    build = builds[name]
    values = total(seed=9)
    parameters = [nn.Parameter(view.clone()) for view in LAYOUT.views(values)]
    torchs = build(parameters)
    flat = FlatOptimizer(LAYOUT, WHOLE, values, build)
    states: dict[int, State] = {0: flat.initial_state()}
    for number, absent in enumerate([(), (), (1,), (), (0, 2)]):
        given = gradient(*absent, seed=number)
        if given.partial:
            states = flat.by_layer(states)
        peeked, _ = flat.step(values, states[0], given.total, samples=4, partial=given.partial)
        values, states[0] = flat.step(
            values, states[0], given.total, samples=4, partial=given.partial, donate=True, in_place=True
        )
        assert torch.equal(peeked, values)
        for n, (parameter, view) in enumerate(zip(parameters, LAYOUT.views(given.total / 4), strict=True)):
            parameter.grad = None if n in absent else view
        torchs.step()
        for parameter, view in zip(parameters, LAYOUT.views(values), strict=True):
            torch.testing.assert_close(view, parameter.detach(), rtol=1e-5, atol=1e-6)
