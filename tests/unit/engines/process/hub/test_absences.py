"""For which part of a run each worker was there."""

from __future__ import annotations

import pytest

from ownpace.engines.process.hub.absences import Absences
from ownpace.fleet import Fleet, Machine, PlannedFault


def test_a_worker_that_is_gone_counts_for_the_time_that_it_was_there():
    absences = Absences()
    absences.meet(["first", "second"], 0.0)
    absences.lose("second", 2.0)
    absences.meet(["first"], 2.5)
    absences.meet(["first", "second"], 4.0)
    absences.lose("second", 7.0)
    there = [absences.share_there("second", until_s) for until_s in (0.0, 1.0, 3.0, 5.0, 10.0)]
    assert there == pytest.approx([1.0, 1.0, 2 / 3, 3 / 5, 5 / 10])
    assert absences.share_there("first", 10.0) == 1.0


def test_who_was_away_counts_and_not_who_was_to_be():
    fleet = Fleet(
        machine=(Machine(samples_per_s=100, count=2),), fault=(PlannedFault(worker="worker-0", at_s=1.0, kind="kill"),)
    )
    assert fleet.limit_samples_per_s(10.0) == pytest.approx(100 + 100 * 0.1)
    assert fleet.limit_samples_per_s(10.0, away={"worker-1": [(4.0, 6.0)]}) == pytest.approx(100 + 100 * 0.8)
