"""What the hub compares, and what it refuses."""

from __future__ import annotations

from ownpace.engines.process.presence.roll import differences


def test_ranks_that_are_alike_do_not_differ():
    assert differences([{"model": "a", "seed": "0"}] * 3) == []


def test_who_differs_in_what_is_said():
    found = differences([{"model": "a", "seed": "0"}, {"model": "b", "seed": "0"}, {"model": "c", "seed": "0"}])
    assert found == ["the model of ranks 1, 2 is b, that of rank 0 is a"]


def test_what_is_missing_differs():
    assert differences([{"model": "a"}, {}]) == ["the model of rank 1 is nothing, that of rank 0 is a"]
