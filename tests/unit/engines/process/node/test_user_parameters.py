"""Copies of a user's parameters: one serves for all who ask, but only while nobody can write to them unseen."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from ownpace.core.contract.values import Gradient, Shard
from ownpace.engines.process.node.user_pair import UserPair
from ownpace.engines.process.node.user_parameters import UserParameters


@contextmanager
def script_waiting(user: UserParameters) -> Iterator[None]:
    user.script_waits()
    yield
    user.script_goes_on()


@pytest.fixture
def net() -> nn.Module:
    return nn.Linear(3, 2)


@pytest.fixture
def user(net: nn.Module) -> UserParameters:
    return UserParameters([UserPair(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))])


def a_gradient(user: UserParameters, *, partial: bool = False) -> Gradient:
    return Gradient(torch.ones_like(user.values), 2, (0,), partial=partial)


def test_one_copy_serves_until_the_vector_changes(user):
    shard = Shard(0, 0, user.layout.size)
    with script_waiting(user):
        first = user.snapshot()
        user.peek(a_gradient(user), 1.0)
        user.peek(a_gradient(user, partial=True), 1.0)
        for change in (
            lambda: user.step(a_gradient(user), 1.0),
            lambda: user.step(a_gradient(user, partial=True), 1.0),
            lambda: user.place(torch.zeros_like(user.values), shard),
        ):
            before = user.snapshot()
            kept = before.clone()
            assert user.snapshot() is before
            change()
            assert torch.equal(user.snapshot(), user.values)
            assert torch.equal(before, kept)
            assert not torch.equal(before, user.values)
        user.overwrite(first)
        assert user.snapshot() is first


def test_a_script_may_write_at_any_time(user, net):
    with script_waiting(user):
        user.snapshot()
    before = user.snapshot()
    net.weight.data.add_(1)  # which counts no version
    assert torch.equal(user.snapshot(), user.values)
    assert not torch.equal(before, user.values)


def test_hooks_of_a_script_may_write_within_a_step(user, net):
    def write(*_: object) -> None:
        user.snapshot()
        net.weight.data.clamp_(0, 0.01)

    user.pairs[0].optimizer.register_step_post_hook(write)
    with script_waiting(user):
        user.snapshot()
        user.step(a_gradient(user), 1.0)
        assert torch.equal(user.snapshot(), user.values)


def test_narrow_parameters_round_what_they_are_given():
    net = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2).bfloat16())
    user = UserParameters([UserPair(net, torch.optim.SGD(net.parameters(), lr=0.1))])
    with script_waiting(user):
        user.overwrite(torch.full_like(user.values, 1 / 3))
        assert torch.equal(user.snapshot(), user.values)


def test_a_step_layer_by_layer_is_seen_by_the_next_over_ranges(net):
    """It counts the layers that it steps, and no others."""
    plain = copy.deepcopy(net)
    adams = [torch.optim.Adam(each.parameters(), lr=0.1) for each in (net, plain)]
    user = UserParameters([UserPair(net, adams[0])])
    whole = a_gradient(user)
    without_bias = Gradient(torch.cat([torch.ones(6), torch.full((2,), -0.0)]), 2, (0,), partial=True)
    with script_waiting(user):
        for gradient in (whole, without_bias, whole):
            user.step(gradient, 1.0)
            plain.weight.grad = torch.full((2, 3), 0.5)
            plain.bias.grad = None if gradient.partial else torch.full((2,), 0.5)
            adams[1].step()
    assert torch.equal(net.weight, plain.weight)
    assert torch.equal(net.bias, plain.bias)
