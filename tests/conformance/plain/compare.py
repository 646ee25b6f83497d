"""The same run on the virtual engine, and the comparison with a reference."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest
import torch
from tests.conformance.plain.model import loss, start
from tests.conformance.plain.setting import TASK, Result, Setting

from ownpace import make_algorithm
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.events import Compute, Evaluation, Event, Update
from ownpace.core.learning.optimizer import OptimizerSpec
from ownpace.core.learning.schedule import Schedule
from ownpace.engines import Outcome
from ownpace.testing import simulate


def engine(
    setting: Setting,
    algorithm: str | Algorithm,
    parameters: Mapping[str, object] | None = None,
    *,
    sampling: str = "queue",
    optimizer: OptimizerSpec | None = None,
    **named: object,
) -> tuple[Outcome, list[Event]]:
    """Run an algorithm in virtual time, evaluated after every update.

    Args:
        setting: Everything else.
        algorithm: By name, or as it is.
        parameters: Of an algorithm that is given by name; or by keyword, in `named`.
        sampling: As in `Job`.
        optimizer: Instead of the setting's SGD.
        named: More parameters.
    """
    if isinstance(algorithm, str):
        algorithm = make_algorithm(algorithm, {**(parameters or {}), **named})
    sgd = OptimizerSpec(
        lr=setting.lr,
        momentum=setting.momentum,
        weight_decay=setting.weight_decay,
        schedule=Schedule(shape="cosine" if setting.cosine else "constant"),
    )
    return simulate(
        algorithm,
        setting.fleet,
        task=TASK,
        samples=setting.samples,
        batch_size=setting.batch_size,
        micro_batch=setting.micro_batch,
        seed=setting.seed,
        sampling=sampling,
        optimizer=optimizer or sgd,
        eval_every=1,
    )


def updates(events: list[Event]) -> list[Update]:
    return [event for event in events if isinstance(event, Update)]


def batches(events: list[Event], setting: Setting) -> list[list[int]]:
    """Of each round: the size of every worker's batch, by rank, whatever micro-batches it came in."""
    sizes = [[0] * setting.num_workers for _ in updates(events)]
    for event in events:
        if isinstance(event, Compute):
            rank = int(event.who.removeprefix("worker-"))
            sizes[event.version][rank] += event.samples
    return sizes


def assert_same(outcome: Outcome, events: list[Event], expected: Result, *, times: float = 1e-9) -> None:
    """The engine made the same updates, at the same times, and its parameters went the same way."""
    assert (outcome.reason, outcome.error) == ("finished", None)
    made = updates(events)
    assert [update.samples for update in made] == [step.samples for step in expected.steps]
    assert [update.staleness for update in made] == [step.staleness for step in expected.steps]
    assert [update.t for update in made] == pytest.approx([step.t for step in expected.steps], rel=times)
    assert [update.version for update in made] == list(range(1, len(made) + 1))
    totals = list(itertools.accumulate(step.samples for step in expected.steps))
    assert [update.total_samples for update in made] == totals
    losses = [event.loss for event in events if isinstance(event, Evaluation)]
    assert losses == pytest.approx([loss(start()), *(step.loss for step in expected.steps)], rel=1e-4)
    # One is in single precision. Where delay and momentum bring a run to the edge of what is stable, rounding grows
    # with every update: 1e-4 was not enough for one draw in some thousands. A wrong rule is off by far more.
    torch.testing.assert_close(outcome.model["at"].double(), expected.weights, rtol=1e-3, atol=1e-4)
