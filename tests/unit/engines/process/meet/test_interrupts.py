"""Signals: noted for whoever leads the run, or for this process alone."""

from __future__ import annotations

import signal

import pytest

from ownpace.core.contract.errors import Interrupted, MachineDied
from ownpace.engines.process.meet import interrupts
from ownpace.engines.process.node.context import Orders
from ownpace.engines.process.talk.control import Leaving


def test_a_signal_is_noted_and_told_once():
    orders = Orders(leaves=True, helpers=["server-0"])
    with interrupts.signals(orders):
        assert orders.leaving() is None
        signal.raise_signal(signal.SIGTERM)
        assert orders.leaving() == Leaving("SIGTERM", ["server-0"])
        assert orders.leaving() is None
        orders.raise_alarms()


def test_a_second_one_ends_a_process_that_may_leave_alone():
    orders = Orders(leaves=True)
    with interrupts.signals(orders):
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(Interrupted, match="interrupted by a second SIGINT"):
        orders.raise_alarms()


def test_where_the_hub_is_or_a_script_runs_signals_are_counted_alone():
    orders = Orders()
    with interrupts.signals(orders):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    assert orders.stops == ["SIGINT", "SIGTERM"]
    assert orders.leaving() is None
    orders.raise_alarms()


@pytest.mark.parametrize(("leaves", "kind"), [(True, Interrupted), (False, MachineDied)])
def test_who_does_not_end_in_time_gives_up(monkeypatch, leaves, kind):
    monkeypatch.setattr(interrupts, "PATIENCE_S", 0.0)
    orders = Orders(leaves=leaves)
    with interrupts.signals(orders):
        signal.raise_signal(signal.SIGTERM)
        while not orders.alarms:
            pass
    with pytest.raises(kind, match="did not end within 0 s after SIGTERM"):
        orders.raise_alarms()
