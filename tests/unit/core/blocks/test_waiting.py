"""When all workers wait for each sum, and when not."""

from __future__ import annotations

import torch

from ownpace.core.blocks.waiting import Waiting
from ownpace.core.contract.values import Gradient, union

CHEAP, DEAR = 5.0, 15.0
"""Samples that are missed, of rounds of a hundred."""


def heard(waiting: Waiting, *missed: float, late: int = 0) -> list[bool]:
    """Whether it waits after each of these sums."""
    waits = []
    for samples in missed:
        parts = [Gradient(torch.zeros(1), 50, (0,)) for _ in range(2)]
        told = [waiting.noted(part, samples / 2, late=rank < late) for rank, part in enumerate(parts)]
        waiting.learn(union(told))
        waits.append(waiting.waits)
    return waits


def test_it_is_tried_early_and_kept_up_while_cheap() -> None:
    # The first two sums after the trial began are of what was before, and of getting into step.
    assert heard(Waiting(), 0, 0, 0, 0, DEAR, DEAR, *[CHEAP] * 300) == [False] * 3 + [True] * 303


def test_one_outlier_changes_nothing_and_two_do() -> None:
    waiting = Waiting()
    assert all(heard(waiting, 0, 0, 0, 0, 0, 0, CHEAP, DEAR, CHEAP, CHEAP, 1e9, CHEAP)[3:])
    assert heard(waiting, CHEAP, DEAR, CHEAP, DEAR) == [True, True, True, False]


def test_where_it_is_dear_it_is_tried_again_much_later() -> None:
    waits = heard(Waiting(), *[0] * 4, *[DEAR] * 806)
    assert [number for number, each in enumerate(waits) if each] == [3, 4, 5, 406, 407, 408, 809]


def test_sums_that_take_all_longer_than_a_step_are_not_tried() -> None:
    waiting = Waiting()
    assert not any(heard(waiting, *[0.0] * 50, late=2))
    assert heard(waiting, 0.0, late=1) == [True]
