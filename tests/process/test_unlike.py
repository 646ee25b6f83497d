"""Ranks on processors that round differently."""

from __future__ import annotations

import pytest
import torch
from tests.process.started import PATIENCE_S, Start, importable, torchrun

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2 * PATIENCE_S),
    pytest.mark.skipif(
        torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="no processor rounds otherwise than this one"
    ),
]


@pytest.mark.parametrize("algorithm", ["stride", "local", "async"])
def test_what_goes_by_sums_or_servers_alone_stays_equal(algorithm: str, start: Start) -> None:
    started = start(torchrun("-m", "tests.process.unlike", algorithm), PYTHONPATH=importable())
    assert started.ends() == 0, started.stderr
    weights = [line for line in started.stdout.splitlines() if "weights" in line]
    assert len(weights) == 2
    assert len({line.split("weights")[1] for line in weights}) == 1


def test_steps_that_part_are_told_of(start: Start) -> None:
    """Each rank makes the step of the same sum itself, and the results differ in their last bits."""
    started = start(torchrun("-m", "tests.process.unlike", "sync"), PYTHONPATH=importable())
    assert started.ends() != 0
    assert "the parameters differ: layer 'weight'" in started.stderr
    assert "do unlike processors round differently (then take stride, local or async)" in started.stderr
