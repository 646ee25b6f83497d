"""Fleets, algorithms and faults drawn from a few hundred seeds; `make torture` runs thousands."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ownpace.testing.torture import torture
from ownpace.testing.torture.runner import table

SEEDS = 300
AT_ONCE = 30


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_all_invariants_hold(first):
    reports = [torture(seed) for seed in range(first, first + AT_ONCE)]
    assert [str(report) for report in reports if report.complaints] == []
    assert sum(report.updates for report in reports) > 200


@pytest.mark.parametrize("seed", [1275, 5304, 6675, 6837, 8854])
def test_what_torture_took_for_a_mistake_is_none(seed):
    """A batch that is loaded for nothing at the end; servers of which one is left; a sum that was given up."""
    assert torture(seed).complaints == []


def test_a_table_says_what_was_run():
    reports = [torture(seed) for seed in range(8)]
    lines = table(reports).splitlines()
    assert [cell.strip() for cell in lines[-1].split("|")[1:3]] == ["all", "8"]
    assert {line.split("|")[1].strip() for line in lines[2:-1]} == {report.algorithm for report in reports}


def test_a_seed_is_replayed_by_the_line_that_is_printed():
    report = torture(7)
    replayed = subprocess.run(
        [sys.executable, *report.replay.split()[1:]], capture_output=True, text=True, timeout=100, check=True
    )
    assert replayed.stdout == f"{report}\n"
