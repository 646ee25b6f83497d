"""Gradients whose layers are not one vector yet."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ownpace.core.contract.values import Gradient, union
from ownpace.core.learning.layout import Layout
from ownpace.engines.virtual.awaitables import VirtualGradient
from ownpace.engines.virtual.collectives import total
from ownpace.engines.virtual.unjoined import SumSoFar, Unjoined

LAYOUT = Layout(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)))


def a_gradient(seed: int) -> VirtualGradient:
    generator = torch.Generator().manual_seed(seed)
    gradient = VirtualGradient(torch.empty(0), 4 + seed, (seed,), float(seed))
    gradient.hold(Unjoined(LAYOUT, [torch.randn(layer.shape, generator=generator) for layer in LAYOUT.layers]))
    return gradient


def test_the_sum_is_that_of_the_vectors_to_the_bit_and_changes_none_of_them() -> None:
    gradients = [a_gradient(seed) for seed in range(3)]
    summed = total(gradients, SumSoFar())
    assert all(gradient.parts is not None for gradient in gradients)  # none has been joined
    plain = [Gradient(gradient.total, gradient.samples, gradient.versions, gradient.loss) for gradient in gradients]
    expected = union(plain)
    assert isinstance(summed, Gradient)
    assert torch.equal(summed.total, expected.total)
    assert (summed.samples, summed.versions, summed.loss) == (15, (0,), 3.0)
    again = a_gradient(0)
    assert torch.equal(gradients[0].total, again.total)
    assert gradients[0].parts is None


def test_joined_when_it_is_asked_for() -> None:
    gradient = a_gradient(1)
    assert gradient.parts is not None
    assert gradient.total.shape == (LAYOUT.size,)
    assert gradient.total is gradient.total
    # Where some are joined, vectors are added.
    mixed = total([gradient, a_gradient(2)], SumSoFar())
    assert isinstance(mixed, Gradient)
    assert torch.equal(mixed.total, gradient.total + a_gradient(2).total)


def test_what_was_summed_early_is_the_same_sum_and_cannot_be_asked_for_any_more() -> None:
    gradients = [a_gradient(seed) for seed in range(4)]
    gradients[3].total  # noqa: B018  # one that is a vector already comes after those that are not
    early = SumSoFar()
    for gradient in gradients[:2]:
        assert gradient.parts is not None
        early.add(gradient.parts)
        gradient.parts.release()
    summed = total(gradients, early)
    assert isinstance(summed, Gradient)
    assert torch.equal(summed.total, union([a_gradient(seed) for seed in range(4)]).total)
    with pytest.raises(RuntimeError, match="it is the engine's since then"):
        _ = gradients[0].total


def test_layers_that_share_a_tensor_are_not_added_to_each_other() -> None:
    same = torch.ones(3)
    layout = Layout([("one", torch.Size([3]), False), ("other", torch.Size([3]), False)])
    early = SumSoFar()
    for _ in range(2):
        early.add(Unjoined(layout, [same, same]))
    assert early.plus([]).tolist() == [2.0] * 6
    assert same.tolist() == [1.0] * 3
