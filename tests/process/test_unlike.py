"""Ranks on processors that round differently."""

from __future__ import annotations

import pytest
import torch
from tests.process.started import PATIENCE_S, Start, Started, importable, torchrun

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2 * PATIENCE_S),
    pytest.mark.skipif(
        torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="no processor rounds otherwise than this one"
    ),
]
SAID = "the processors of the workers round differently: replicas differed in"


def run(start: Start, *arguments: str) -> Started:
    return start(torchrun("-m", "tests.process.unlike", *arguments), PYTHONPATH=importable())


def assert_equal_weights(started: Started) -> None:
    assert started.ends() == 0, started.stderr
    weights = [line for line in started.stdout.splitlines() if "weights" in line]
    assert len(weights) == 2
    assert len({line.split("weights")[1] for line in weights}) == 1


@pytest.mark.parametrize("algorithm", ["stride", "local", "async"])
def test_what_goes_by_sums_or_servers_alone_stays_equal(algorithm: str, start: Start) -> None:
    started = run(start, algorithm, "sgd")
    assert_equal_weights(started)
    assert SAID not in started.stderr


@pytest.mark.parametrize(("algorithm", "optimizer"), [("sync", "sgd"), ("pace", "adam"), ("balanced", "adam")])
def test_steps_that_part_are_made_equal_again(algorithm: str, optimizer: str, start: Start) -> None:
    """Each rank makes the step of the same sum itself, and the results differ in their last bits."""
    started = run(start, algorithm, optimizer)
    assert_equal_weights(started)
    assert started.stderr.count(SAID) == 1


def test_what_rounding_does_not_explain_ends_the_run(start: Start) -> None:
    started = run(start, "sync", "sgd", "spoiled")
    assert started.ends() != 0
    assert "the parameters differ: layer 'weight' on worker-1 from that of worker-0, by 0.00" in started.stderr
    assert "processors that round differently explain " in started.stderr
