"""Steps over ranges of the vector are, bit for bit, those that the optimizer makes layer by layer."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ownpace.core.contract.values import Gradient
from ownpace.core.learning.optimizer import ELEMENTWISE
from ownpace.engines.process.node.flat_steps import FlatSteps, elementwise_step
from ownpace.engines.process.node.user_pair import UserPair
from ownpace.engines.process.node.user_parameters import UserParameters

MORE: dict[str, Callable[[Iterable[nn.Parameter]], Optimizer]] = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "maximize": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1, maximize=True),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, weight_decay=0.01),
    "centered": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True),
    "foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "tensor": lambda p: torch.optim.SGD(p, lr=torch.tensor(0.1), momentum=0.9),
    **{name: lambda p, kind=kind: kind(p, lr=0.01) for name, kind in ELEMENTWISE.items()},  # type: ignore[misc]
}


class Net(nn.Module):
    """Layers of odd sizes: a number, a layer without any, and one in channels-last order."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(()))
        self.first = nn.Linear(13, 7)
        self.nothing = nn.Parameter(torch.randn(0, 3))
        self.second = nn.Conv2d(3, 5, 3)
        self.second.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.third = nn.Linear(7, 301)


class Both:
    """The same net twice: in a fleet, and with a plain optimizer."""

    def __init__(self, make: Callable[[Iterable[nn.Parameter]], Optimizer], dtype: torch.dtype = torch.float32) -> None:
        torch.manual_seed(0)
        self.net = Net().to(dtype)
        self.plain_net = copy.deepcopy(self.net)
        self.optimizer, self.plain = make(self.net.parameters()), make(self.plain_net.parameters())
        self.user = UserParameters([UserPair(self.net, self.optimizer)])

    def gradient(self, absent: int | None = None) -> Gradient:
        total = torch.randn_like(self.user.values)
        if absent is not None:
            layer = self.user.layout.layers[absent]
            total[layer.start : layer.stop] = -0.0
        return Gradient(total, 5, (0,), partial=absent is not None)

    def step_plainly(self, gradient: Gradient, absent: int | None = None) -> None:
        means = self.user.layout.views(gradient.total / gradient.samples)
        for index, (parameter, mean) in enumerate(zip(self.plain_net.parameters(), means, strict=True)):
            parameter.grad = None if index == absent else mean
        self.plain.step()

    def step(self, absent: int | None = None) -> None:
        gradient = self.gradient(absent)
        self.user.step(gradient, 1.0)
        self.step_plainly(gradient, absent)
        self.check()

    def check(self) -> None:
        for parameter, plain in zip(self.net.parameters(), self.plain_net.parameters(), strict=True):
            assert same(parameter, plain)
            if not parameter.numel():
                continue  # where some layers have no gradient, one without numbers counts among them
            state, expected = self.optimizer.state.get(parameter, {}), self.plain.state.get(plain, {})
            assert list(state) == list(expected)
            for key, value in expected.items():
                assert same(state[key], value), key

    def peek(self) -> None:
        gradient = self.gradient()
        before = copy.deepcopy(self.plain.state_dict()), [p.detach().clone() for p in self.plain_net.parameters()]
        ahead = self.user.peek(gradient, 1.0)
        self.step_plainly(gradient)
        for view, parameter in zip(self.user.layout.views(ahead), self.plain_net.parameters(), strict=True):
            assert same(view, parameter)
        self.plain.load_state_dict(before[0])
        for parameter, was in zip(self.plain_net.parameters(), before[1], strict=True):
            parameter.data.copy_(was)
        self.check()


def same(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one.detach(), other.detach())


@pytest.fixture
def made_flat(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notes every step and peek over ranges."""
    made: list[str] = []
    for name in ("step", "peek"):
        real = getattr(FlatSteps, name)

        def noted(self: FlatSteps, *given: Tensor, name: str = name, real: Callable[..., None] = real) -> None:
            made.append(name)
            real(self, *given)

        monkeypatch.setattr(FlatSteps, name, noted)
    return made


@pytest.mark.parametrize("name", MORE)
def test_same_bits_as_layer_by_layer(name: str, made_flat: list[str]) -> None:
    both = Both(MORE[name], torch.float64 if name == "adagrad" else torch.float32)
    both.peek()  # before there is a state
    for _ in range(3):
        both.step()
        both.peek()
    assert made_flat == ["peek", "step", "peek", "step", "peek", "step", "peek"]
    # A layer without a gradient: the optimizer makes that step itself, and the layers' counts differ from then on.
    both.step(absent=2)
    both.peek()
    both.step()
    # What a user does between steps: other settings, another state, a state that is written to.
    for optimizer in (both.optimizer, both.plain):
        optimizer.param_groups[0]["lr"] *= 0.5
    both.step()
    for optimizer in (both.optimizer, both.plain):
        optimizer.load_state_dict(through_a_file(optimizer.state_dict()))
    both.step()
    both.peek()
    for optimizer in (both.optimizer, both.plain):
        for entry in optimizer.state.values():
            for key, value in entry.items():
                value.add_(1) if key == "step" else value.mul_(0.5)
    both.step()
    assert made_flat.count("step") == 7
    both.user.release()
    both.optimizer.zero_grad()
    both.plain.zero_grad()
    for net, optimizer in ((both.net, both.optimizer), (both.plain_net, both.plain)):
        for parameter in net.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    both.check()


def through_a_file(state: dict[str, object]) -> dict[str, object]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, object] = torch.load(file, weights_only=True)
    return loaded


def test_groups_have_settings_of_their_own(made_flat: list[str]) -> None:
    def make(parameters: Iterable[nn.Parameter]) -> Optimizer:
        known = list(parameters)
        groups: list[dict[str, Any]] = [
            {"params": known[:3]},
            {"params": known[5:], "weight_decay": 0.1, "momentum": 0.0},
        ]
        return torch.optim.SGD([*groups, {"params": known[3:5], "lr": 0.5}], lr=0.1, momentum=0.9)

    both = Both(make)
    both.step()
    both.step()
    both.peek()
    for optimizer in (both.optimizer, both.plain):  # a schedule that turns momentum on
        optimizer.param_groups[1]["momentum"] = 0.5
    both.peek()
    both.step()
    both.step()
    assert made_flat == ["step", "step", "peek", "peek", "step", "step"]


def test_hooks_and_fused_steps_are_the_optimizers_own(made_flat: list[str]) -> None:
    both = Both(MORE["adamw"])
    both.step()
    seen: list[Optimizer] = []
    hook = both.optimizer.register_step_post_hook(lambda optimizer, *_: seen.append(optimizer))
    both.step()
    both.peek()
    assert seen == [both.optimizer]
    assert made_flat == ["step"]
    hook.remove()
    both.step()
    assert made_flat == ["step", "step"]
    for optimizer in (both.optimizer, both.plain):
        optimizer.param_groups[0]["fused"] = True
    both.step()
    assert made_flat == ["step", "step"]


def test_steps_that_are_not_known() -> None:
    class Mine(torch.optim.SGD):
        pass

    parameters = [nn.Parameter(torch.zeros(3))]
    assert elementwise_step(Mine(parameters, lr=0.1)) is None
    known = torch.optim.SGD(parameters, lr=0.1)
    torch.optim.lr_scheduler.StepLR(known, 1)
    assert elementwise_step(known) is not None
    known.step = lambda closure=None: None  # type: ignore[method-assign]
    assert elementwise_step(known) is None
    assert elementwise_step(torch.optim.Adafactor(parameters)) is None


def test_only_what_was_stepped_shows_as_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Both(MORE["sgd"])
    other = nn.Linear(2, 2)
    user = UserParameters([UserPair(both.net, both.optimizer), UserPair(other, torch.optim.SGD(other.parameters()))])
    assert both.optimizer.state[both.net.scale] == {}  # looking for it makes one
    gradient = Gradient(torch.ones_like(user.values), 4, (0,), counts=(4, 4, 0))
    user.step(gradient, 1.0)
    before, others = [p._version for p in both.net.parameters()], [p._version for p in other.parameters()]
    monkeypatch.setattr(FlatSteps, "_take_over", lambda self: pytest.fail("nothing has changed"))
    user.step(gradient, 1.0)
    assert all(p._version > was for p, was in zip(both.net.parameters(), before, strict=True))
    assert [p._version for p in other.parameters()] == others


def test_states_have_memory_of_their_own() -> None:
    both = Both(MORE["adamw"])
    both.step()
    whole = both.user.values.nbytes
    state = both.optimizer.state[both.net.first.weight]["exp_avg"]
    assert state.untyped_storage().nbytes() == whole  # a view, as long as the fleet has it
    saved = both.optimizer.state_dict()["state"][2]
    assert {value.untyped_storage().nbytes() for value in saved.values()} == {4, 4 * 13 * 7}
    both.user.release()
    for entry in both.optimizer.state.values():
        assert all(value.untyped_storage().nbytes() == value.nbytes for value in entry.values())
    assert not both.optimizer._optimizer_state_dict_post_hooks
    both.check()


def test_half_precision_is_stepped_by_layer(made_flat: list[str]) -> None:
    both = Both(MORE["momentum"], torch.bfloat16)
    both.step()
    both.peek()
    assert not made_flat
