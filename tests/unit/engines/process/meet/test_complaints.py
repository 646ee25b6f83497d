"""Among what many nodes tell, the cause is found."""

from __future__ import annotations

import time

import pytest

from ownpace.core.contract.errors import DivergenceError, MachineDied, NodeFailed, PeerLost, WireError
from ownpace.engines.process.meet.complaints import Complaints


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is moved."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_a_cause_is_clear_at_once(clock):
    complaints = Complaints()
    assert complaints.verdict is None
    cause = DivergenceError("the loss is nan")
    complaints.add(PeerLost("a member is gone"))
    assert complaints.verdict is None
    complaints.add(cause)
    complaints.add(NodeFailed("later"))
    assert complaints.verdict is cause


def test_a_consequence_that_nothing_explains_counts_after_a_while(clock):
    complaints = Complaints()
    first = WireError("half a message")
    complaints.add(first)
    complaints.add(PeerLost("a member is gone"))
    clock[0] += 1.9
    assert complaints.verdict is None
    clock[0] += 0.2
    assert complaints.verdict is first
    complaints.add(MachineDied("worker-1 was killed"))
    assert complaints.verdict is first  # a verdict stays


def test_the_best_explanation_is_no_consequence(clock):
    complaints = Complaints()
    assert complaints.best is None
    complaints.add(PeerLost("a member is gone"))
    died = MachineDied("worker-1 was killed")
    complaints.add(died)
    assert complaints.best is died
