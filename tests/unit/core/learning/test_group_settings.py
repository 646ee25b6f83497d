"""The numbers of an optimizer's groups: all are read, set for a step, and put back; what the step writes is state."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

from ownpace.core.contract.errors import InputError
from ownpace.core.learning.group_settings import GroupSettings, as_numbers, count_numbers
from ownpace.core.learning.optimizer import ELEMENTWISE

KINDS: dict[str, Callable[..., Optimizer]] = {
    **ELEMENTWISE,
    "adafactor": torch.optim.Adafactor,
    "muon": torch.optim.Muon,
    "sgd with momentum": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9, nesterov=True),
    "amsgrad": lambda p, lr: torch.optim.Adam(p, lr=lr, amsgrad=True),
}


class Counting(Optimizer):
    """Keeps state in its groups, as schedule-free optimizers and Prodigy do."""

    def __init__(self, parameters: Iterable[Any], lr: float) -> None:
        super().__init__(
            parameters, {"lr": lr, "k": 0, "d": torch.tensor(1.0), "weight_sum": 0.0, "betas": (0.9, 0.99)}
        )

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["k"] += 1
            if group["k"] == 3 and group is self.param_groups[0]:
                group["d"].mul_(2.0)  # one for all groups: they share the default
            group["weight_sum"] += group["lr"]
            for parameter in group["params"]:
                parameter.data -= group["lr"] * group["betas"][0] * parameter.grad


def parameters(count: int = 2) -> list[nn.Parameter]:
    made = [nn.Parameter(torch.ones(2, 3)) for _ in range(count)]
    for parameter in made:
        parameter.grad = torch.ones(2, 3)
    return made


def two_groups(make: Callable[..., Optimizer]) -> Optimizer:
    first, second = parameters()
    return make([{"params": [first]}, {"params": [second], "lr": 0.25}], lr=0.5)


def shown(optimizer: Optimizer) -> list[dict[str, object]]:
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    return [{key: as_numbers(value) for key, value in group.items()} for group in groups]


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_every_number_of_every_group_is_read_set_and_put_back(make):
    optimizer = two_groups(make)
    settings = GroupSettings([optimizer])
    own, before = settings.read(), shown(optimizer)
    assert settings.read() is own
    assert sum(count_numbers(before)) == len(own)
    agreed = tuple(number + 0.0625 * (place + 1) for place, number in enumerate(own))
    with settings.applied(agreed, 1.0):
        assert GroupSettings([optimizer]).read() == tuple(
            float(bool(new)) if flag else new for new, flag in zip(agreed, flags(before), strict=True)
        )
    assert shown(optimizer) == before
    assert settings.read() is own


def flags(groups: list[dict[str, object]]) -> list[bool]:
    """Of each number, whether it stands for true or false."""
    return [isinstance(value, bool) for group in groups for _, each in sorted(group.items()) for value in leaves(each)]


def leaves(value: object) -> list[object]:
    if isinstance(value, tuple):
        return [part for part in value if part is not None]
    return [value] if isinstance(value, int | float) else []


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_an_agreed_step_is_the_step_of_an_optimizer_made_with_those_settings(make):
    here, there = two_groups(make), two_groups(make)
    for group, lr in zip(there.param_groups, (0.03, 0.07), strict=True):
        group["lr"] = 2 * lr
        if "weight_decay" in group:
            group["weight_decay"] = 0.125
        if "betas" in group:
            group["betas"] = (0.5, 0.75)
    settings, wanted = GroupSettings([here]), GroupSettings([there])
    agreed = list(wanted.read())
    for lr in (0.03, 0.07):
        agreed[agreed.index(2 * lr)] = lr
    for _ in range(3):
        with settings.applied(tuple(agreed), 2.0):
            here.step()
        there.step()
    assert settings.read() == GroupSettings([two_groups(make)]).read()
    for mine, theirs in zip(all_parameters(here), all_parameters(there), strict=True):
        assert torch.equal(mine, theirs)


def all_parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def test_two_optimizers_are_read_one_after_the_other():
    one, other = (torch.optim.SGD(parameters(1), lr=lr) for lr in (0.5, 0.25))
    both = GroupSettings([one, other])
    assert both.read() == GroupSettings([one]).read() + GroupSettings([other]).read()
    assert both.difference(both.read(), GroupSettings([one]).read() * 2) == (
        "lr of parameter group 1 is 0.25 on this rank and 0.5 on rank 0"
    )


def test_what_the_step_writes_is_state_and_left_alone():
    optimizer = two_groups(Counting)
    settings = GroupSettings([optimizer])
    first = settings.read()
    for step in range(1, 5):
        with settings.applied(first, 1.0):  # rank 0's, from before its first step: still under way
            optimizer.step()
        assert [group["k"] for group in optimizer.param_groups] == [step, step]
        assert [group["weight_sum"] for group in optimizer.param_groups] == [0.5 * step, 0.25 * step]
        assert [float(group["d"]) for group in optimizer.param_groups] == [1.0 if step < 3 else 2.0] * 2
        assert settings.read() == first  # what is state does not count as changed
    assert settings.difference(first, tuple(number + 1 for number in first)).startswith("betas")
    # And what is not is still set.
    before = [parameter.clone() for parameter in all_parameters(optimizer)]
    agreed = tuple(0.0 if number in (0.5, 0.25) else number for number in first)
    with settings.applied(agreed, 1.0):
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, all_parameters(optimizer), strict=True))


def test_a_tensor_keeps_its_place_in_memory():
    lr, beta, other = (torch.tensor(number) for number in (0.5, 0.875, 0.9375))
    optimizer = torch.optim.Adam(parameters(), lr=lr, betas=(beta, other), foreach=False, capturable=True)
    settings = GroupSettings([optimizer])
    own, betas = settings.read(), optimizer.param_groups[0]["betas"]
    agreed = tuple({0.5: 0.25, 0.875: 0.75, 0.9375: 0.625}.get(number, number) for number in own)
    with settings.applied(agreed, 0.5):
        assert optimizer.param_groups[0]["lr"] is lr
        assert float(lr) == 0.125
        assert (float(beta), float(other)) == (0.75, 0.625)
    assert optimizer.param_groups[0]["lr"] is lr
    assert optimizer.param_groups[0]["betas"] is betas
    assert (float(lr), float(beta), float(other)) == (0.5, 0.875, 0.9375)
    assert settings.read() is own
    lr.fill_(0.375)  # as torch's schedulers do
    assert 0.375 in settings.read()


@pytest.mark.parametrize("tensor_lr", [False, True])
def test_an_own_step_leaves_a_tensor_lr_a_setting(tensor_lr):
    optimizer = torch.optim.SGD(parameters(), lr=torch.tensor(0.5) if tensor_lr else 0.5)
    settings = GroupSettings([optimizer])
    for _ in range(3):
        with settings.applied((), 0.5):
            optimizer.step()
    assert float(optimizer.param_groups[0]["lr"]) == 0.5
    agreed = tuple(0.0 if number == 0.5 else number for number in settings.read())
    before = [parameter.clone() for parameter in all_parameters(optimizer)]
    with settings.applied(agreed, 1.0):
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, all_parameters(optimizer), strict=True))


def one_cycle(optimizer: Optimizer) -> LRScheduler:
    return OneCycleLR(optimizer, max_lr=0.5, total_steps=12)


def warm_up(optimizer: Optimizer) -> LRScheduler:
    return LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 7))


@pytest.mark.parametrize("make_scheduler", [one_cycle, warm_up])
@pytest.mark.parametrize("make", [KINDS["sgd with momentum"], torch.optim.AdamW], ids=["sgd", "adamw"])
def test_a_rank_whose_scheduler_is_elsewhere_steps_as_the_first_one_does(make, make_scheduler):
    first, second = (make(parameters(), lr=0.1) for _ in range(2))
    schedulers = make_scheduler(first), make_scheduler(second)
    of_first, of_second = GroupSettings([first]), GroupSettings([second])
    assert of_first.read() == of_second.read()
    for step in range(10):
        agreed = of_first.read()
        assert bool(of_second.difference(of_second.read(), agreed)) == (step > 1)
        own = of_second.read()
        with of_first.applied(agreed, 1.0):
            first.step()
        with of_second.applied(agreed, 1.0):
            second.step()
        assert of_second.read() == own
        schedulers[0].step()
        if step == 0:
            schedulers[1].step()  # then it computes nothing any more
    assert all(torch.equal(a, b) for a, b in zip(all_parameters(first), all_parameters(second), strict=True))


def test_assigned_settings_stay():
    optimizer = two_groups(Counting)
    settings = GroupSettings([optimizer])
    with settings.applied((), 1.0):
        optimizer.step()
    settings.assign([number + 1 for number in settings.read()])
    assert [group["lr"] for group in optimizer.param_groups] == [1.5, 1.25]
    assert [group["betas"] for group in optimizer.param_groups] == [(1.9, 1.99)] * 2
    assert [group["k"] for group in optimizer.param_groups] == [1, 1]


def test_settings_in_a_list_may_be_written_to():
    optimizer = torch.optim.Adam(parameters(), lr=0.5)
    optimizer.param_groups[0]["betas"] = [0.5, 0.75]
    settings = GroupSettings([optimizer])
    assert {0.5, 0.75} < set(settings.read())
    optimizer.param_groups[0]["betas"][0] = 0.625
    own = settings.read()
    assert 0.625 in own
    betas = optimizer.param_groups[0]["betas"]
    with settings.applied(tuple(0.25 if number == 0.625 else number for number in own), 1.0):
        assert optimizer.param_groups[0]["betas"] == [0.25, 0.75]
        optimizer.step()
    assert optimizer.param_groups[0]["betas"] is betas
    assert betas == [0.625, 0.75]


def test_a_loaded_state_counts_at_once():
    optimizer = torch.optim.SGD(parameters(), lr=0.5)
    settings = GroupSettings([optimizer])
    settings.read()
    optimizer.load_state_dict(torch.optim.SGD(parameters(), lr=0.25).state_dict())
    assert 0.25 in settings.read()


def test_a_number_must_remain_one():
    optimizer = torch.optim.SGD(parameters(), lr=0.5)
    settings = GroupSettings([optimizer])
    settings.read()
    optimizer.param_groups[0]["momentum"] = None
    with pytest.raises(InputError, match="momentum of parameter group 0 became None"):
        settings.read()


def test_settings_are_put_back_even_if_the_step_fails():
    optimizer = torch.optim.SGD(parameters(), lr=0.5)
    settings = GroupSettings([optimizer])
    settings.read()
    with pytest.raises(KeyError), settings.applied((), 0.5):
        raise KeyError
    assert optimizer.param_groups[0]["lr"] == 0.5
