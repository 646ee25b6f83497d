"""Whoever listens to a run must not end it."""

from __future__ import annotations

import logging

import ownpace
from ownpace.core.contract.events import Event, Update
from ownpace.report.exports.scalars import Scalar
from ownpace.run.hooks import Listeners, ScalarHook


def test_a_listener_that_fails_is_said_once_and_the_run_goes_on(caplog):
    heard: list[Event] = []
    calls = []

    def broken(event: Event) -> None:
        calls.append(event)
        raise RuntimeError("no route to host")

    with caplog.at_level(logging.WARNING):
        result = ownpace.train(task="quadratic", epochs=1, on_event=Listeners([broken, heard.append]))
        ownpace.train(task="quadratic", epochs=1, on_event=broken)
    assert result.error is None
    assert len(calls) == 2
    assert sum(isinstance(event, Update) for event in heard) >= result.summary.updates > 1
    record, _ = [record for record in caplog.records if "no route to host" in record.message]
    assert "hears no more of this run, which goes on" in record.message


class Broken:
    """Takes scalars, and fails at the end."""

    def __init__(self) -> None:
        self.taken: list[Scalar] = []

    def log(self, scalar: Scalar) -> None:
        self.taken.append(scalar)

    def close(self) -> None:
        raise OSError("the disk is full")


def test_a_logger_that_cannot_close_costs_no_result(caplog):
    logger = Broken()
    with caplog.at_level(logging.WARNING), ScalarHook(logger) as hook:
        ownpace.execute(ownpace.Config(task="quadratic", epochs=1), on_event=Listeners([hook]))
    assert {"test/loss", "update/staleness"} <= {scalar.name for scalar in logger.taken}
    assert "the disk is full" in caplog.text
