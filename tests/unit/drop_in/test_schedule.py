"""Schedules that follow the fleet: what is said of those that do not fit."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from ownpace.drop_in.schedule import warn_of_too_long

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
