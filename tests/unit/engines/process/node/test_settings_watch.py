from __future__ import annotations

import warnings
from collections.abc import Sequence

import pytest

from ownpace.engines.process.node.settings_watch import SettingsWatch


def difference(mine: Sequence[float], first: Sequence[float]) -> str:
    return ", ".join(f"{a} is not {b}" for a, b in zip(mine, first, strict=True) if a != b)


def test_warns_once_of_local_steps_with_rates_that_are_far_apart() -> None:
    watch = SettingsWatch(difference)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watch.look_apart()  # before any sum
        watch.hear((0.9, 1.0), (0.9, 1.0))
        watch.look_apart()
        # Towards the end of a schedule: a hundredth of what it was, whatever that is of what is left.
        watch.hear((0.9, 0.01), (0.9, 0.0))
        watch.look_apart()
    watch.hear((0.9, 0.5), (0.91, 0.25))
    with pytest.warns(UserWarning, match=r"0.25 is not 0.5, and each makes its local steps.*fleet.schedule") as warned:
        watch.look_apart()
    watch.look_apart()  # not again: warnings are errors here
    assert "0.91" not in str(warned[0].message)


def test_does_not_warn_of_schedules_that_follow_the_fleet() -> None:
    watch = SettingsWatch(difference)
    watch.is_led = lambda: True
    watch.hear((0.5,), (0.25,))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watch.look_apart()


def test_warns_of_any_difference_where_all_step_alike() -> None:
    watch = SettingsWatch(difference)
    watch.hear((0.5,), (0.5000001,))
    with pytest.warns(UserWarning, match="all step with those of rank 0"):
        watch.look()
