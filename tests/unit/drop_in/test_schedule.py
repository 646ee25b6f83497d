"""Schedules that follow the fleet: what is said of those that do not fit."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from threading import Lock

import pytest
import torch
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from ownpace.drop_in.schedule import FollowedSchedule, Reached, warn_of_too_long

MAKE: dict[str, Callable[[torch.optim.Optimizer], LRScheduler]] = {
    "OneCycleLR": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=32),
    "CosineAnnealingLR": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 33),
    "PolynomialLR": lambda optimizer: lr_scheduler.PolynomialLR(optimizer, 32),
}


def after_16_steps(make: Callable[[torch.optim.Optimizer], LRScheduler]) -> LRScheduler:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = make(optimizer)
    for _ in range(16):
        optimizer.step()
        scheduler.step()
    return scheduler


@pytest.mark.parametrize("kind", MAKE)
def test_a_schedule_that_was_made_for_one_machine_is_told_of(kind: str) -> None:
    scheduler = after_16_steps(MAKE[kind])
    with pytest.warns(UserWarning, match=rf"{kind} was made for 3\d steps and ended at 16: 2 workers share the data"):
        warn_of_too_long(scheduler, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for num_workers in (1, 3, 4):  # it ends where it does for another reason
            warn_of_too_long(scheduler, num_workers)
        warn_of_too_long(after_16_steps(lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 16)), 2)


FOLLOWS: dict[str, Callable[[torch.optim.Optimizer], LRScheduler]] = {
    **MAKE,
    "ExponentialLR": lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.9),
    "LambdaLR": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "CyclicLR": lambda optimizer: lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, 5),
    "SequentialLR": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 5), lr_scheduler.CosineAnnealingLR(optimizer, 20)],
        [5],
    ),
    "ChainedScheduler": lambda optimizer: lr_scheduler.ChainedScheduler(
        [lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 5), lr_scheduler.ExponentialLR(optimizer, 0.9)]
    ),
}


@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1)], ids=["number", "tensor"])
@pytest.mark.parametrize("kind", FOLLOWS)
def test_a_guess_that_led_too_far_is_taken_back_where_a_loop_ends(kind: str, lr: float | torch.Tensor) -> None:
    """Two ranks guess differently how far others have got in a round of local steps, and end at the same step."""

    def made() -> tuple[torch.optim.Optimizer, LRScheduler]:
        rate = lr.clone() if isinstance(lr, torch.Tensor) else lr
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate, momentum=0.9, weight_decay=0.5)
        return optimizer, FOLLOWS[kind](optimizer)

    def settings(optimizer: torch.optim.Optimizer, scheduler: LRScheduler) -> tuple[object, ...]:
        group = optimizer.param_groups[0]
        assert isinstance(group["lr"], type(lr))
        return float(group["lr"]), group["momentum"], group["weight_decay"], [*map(float, scheduler.get_last_lr())]

    def after_a_loop(guesses: dict[int, tuple[int, ...]]) -> tuple[object, ...]:
        """`guesses`: how much more than what was known."""
        optimizer, scheduler = made()
        reached = Reached(0, 0)
        followed = FollowedSchedule(scheduler, lambda: reached)
        for known in (0, 3, 4, 7):
            for ahead in (0, *guesses.get(known, ())):
                reached = Reached(known, known + ahead)
                followed.go_on()
            optimizer.param_groups[0]["weight_decay"] = 0.1 * known  # the script's own doing, which stays
        followed.settle()
        followed.release()
        return settings(optimizer, scheduler)

    optimizer, scheduler = made()
    for _ in range(7):
        optimizer.step()
        scheduler.step()
    optimizer.param_groups[0]["weight_decay"] = 0.1 * 7
    plain = settings(optimizer, scheduler)
    tried: list[dict[int, tuple[int, ...]]] = [{}, {0: (1, 2), 3: (5,), 7: (1, 4)}, {4: (9,)}]
    for guesses in tried:
        assert after_a_loop(guesses) == plain


class Warmup:
    """A rate that is a function with a state of its own."""

    def __init__(self) -> None:
        self.calls = 0
        self.lock = Lock()

    def __call__(self, step: int) -> float:
        self.calls += 1
        return 1 / (1 + step)


class OfItsOwn(LRScheduler):
    """A scheduler as scripts write them: with numbers in lists, and with things that are no numbers."""

    def __init__(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> None:
        self.model, self.file, self.rates = model, Lock(), [0.0]
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:  # type: ignore[override]
        self.rates.append(1 / (1 + self.last_epoch))
        return [self.rates[-1]]


def test_of_a_guess_only_numbers_are_noted() -> None:
    """What cannot be copied, or should not be, stays the script's own object; numbers are as they were."""
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    own = OfItsOwn(optimizer, model)
    warmup = Warmup()
    for scheduler in (own, lr_scheduler.LambdaLR(torch.optim.SGD(model.parameters(), lr=1.0), warmup)):
        reached = [Reached(0, 0)]
        followed = FollowedSchedule(scheduler, partial(reached.__getitem__, -1))
        for further in (Reached(2, 2), Reached(2, 5), Reached(2, 6)):
            reached.append(further)
            followed.go_on()
        followed.settle()
        assert scheduler.last_epoch == 2
        assert scheduler.get_last_lr() == [pytest.approx(1 / 3)]
    assert own.model is model
    assert own.rates == pytest.approx([0, 1, 1 / 2, 1 / 3])
    assert warmup.calls == 3
