"""The comparison of replicas: which layer, which ranks, since which update."""

from __future__ import annotations

import itertools
from functools import partial

import pytest

from ownpace.core.contract.errors import ReplicasDiffer
from ownpace.engines.process.hub.replicas import Replicas, RoundedApart
from ownpace.engines.process.talk.replica_control import Apart

LAYERS = ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]


def replicas(num_workers: int) -> Replicas:
    return Replicas([f"worker-{rank}" for rank in range(num_workers)], LAYERS)


def take_after_eight(compared: Replicas, worker: str, sums: list[int]) -> None:
    compared.take(worker, 8, sums)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_equal_ones_are_equal_in_whatever_order_they_come(order):
    compared = replicas(3)
    for version in (1, 2):
        for rank in order:
            assert compared.agreed == version - 1
            compared.take(f"worker-{rank}", version, [version, 2, 3, 4])
    for rank in order:
        assert compared.are_identical is None
        compared.take_last(f"worker-{rank}", [5, 6, 7, 8])
    assert (compared.agreed, compared.are_identical) == (2, True)


def test_a_worker_may_be_some_checks_ahead():
    compared = replicas(2)
    for version in (1, 2, 4):
        compared.take("worker-1", version, [version] * 4)
    for version in (1, 2):
        compared.take("worker-0", version, [version] * 4)
    assert compared.agreed == 2
    with pytest.raises(ReplicasDiffer, match="since some update after 2, update 4 at the latest;"):
        compared.take("worker-0", 4, [0] * 4)


@pytest.mark.parametrize(
    ("sums", "words"),
    [
        ([[1, 2, 3, 4], [1, 2, 3, 5]], "layer 'fc2.bias' on rank 1 from that of rank 0, since"),
        ([[1, 2, 3, 4], [9, 2, 0, 5]], r"layer 'fc1.weight' \(and 2 more\) on rank 1 from that of rank 0, since"),
        ([[0, 2, 3, 4], *[[1, 2, 3, 4]] * 3], "layer 'fc1.weight' on rank 0 from that of ranks 1, 2, 3, since"),
        ([[1, 2, 3, 4], [1, 0, 3, 4], [1, 5, 3, 4]], "layer 'fc1.bias' on ranks 1, 2 from that of rank 0, since"),
    ],
)
def test_the_error_says_what_differs(sums, words):
    for last in (False, True):
        compared = replicas(len(sums))
        take = compared.take_last if last else partial(take_after_eight, compared)
        for rank, each in enumerate(sums[:-1]):
            take(f"worker-{rank}", each)
        with pytest.raises(ReplicasDiffer, match=words) as raised:
            take(f"worker-{len(sums) - 1}", sums[-1])
        assert ("the end;" if last else "update 8 at the latest;") in str(raised.value)
        assert compared.are_identical is False


def test_where_nothing_is_promised_nothing_is_known():
    compared = replicas(2)
    for rank in range(2):
        compared.take_last(f"worker-{rank}", [])
    assert compared.are_identical is None


def test_what_rounding_explains_is_counted_and_what_it_does_not_explain_raises():
    compared, rounded = replicas(3), RoundedApart()
    for version, worker, apart in [(1, 1, 3e-8), (1, 2, 4e-8), (2, 1, 1e-8)]:
        compared.take_apart(f"worker-{worker}", Apart(version, 1, 2, apart, 1e-6))
        rounded.add(version, apart)
    assert (rounded.times, rounded.most) == (2, 4e-8)
    assert "differed in 2 comparisons, by at most 4e-08 of a layer's largest number" in str(rounded)
    with pytest.raises(
        ReplicasDiffer, match=r"'fc2.weight' on worker-1 from that of worker-0, by 0.002 .* explain 1e-06"
    ):
        compared.take_apart("worker-1", Apart(8, 4, 2, 2e-3, 1e-6))
    assert compared.are_identical is False
