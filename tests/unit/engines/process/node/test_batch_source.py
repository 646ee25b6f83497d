"""Which samples a batch gets at the end of the data."""

from __future__ import annotations

import pytest

from ownpace.core.learning.orders import InOrder
from ownpace.engines.process.node.batch_source import BatchSource, OwnCount


def sizes(wanted: int, total: int, *, fills: int | None = None, least: int = 2) -> list[int]:
    source = BatchSource(
        lambda: wanted,
        OwnCount(0, 0, lambda claim: None),
        InOrder(total),
        [(0, total)],
        fills=fills,
        least=least,
    )
    found = list(source)
    assert [place for batch in found for place in batch] == list(
        range(total if fills is None else sum(map(len, found)))
    )
    return list(map(len, found))


@pytest.mark.parametrize(
    ("wanted", "total", "expected"),
    [(8, 25, [8, 8, 9]), (8, 26, [8, 8, 8, 2]), (8, 24, [8, 8, 8]), (8, 1, [1]), (1, 5, [2, 3])],
)
def test_no_batch_is_of_one_sample_if_there_are_more(wanted: int, total: int, expected: list[int]) -> None:
    assert sizes(wanted, total) == expected


def test_alone_batches_are_those_of_a_plain_loop() -> None:
    assert sizes(8, 25, least=1) == [8, 8, 8, 1]


def test_what_does_not_fill_a_batch_is_left_out_all_the_same() -> None:
    assert sizes(8, 25, fills=8) == [8, 8, 8]


def test_a_sample_that_another_worker_has_taken_is_left_to_it() -> None:
    taken = iter([0, 8, 24, 25])  # after this worker's second take, another took eight
    source = BatchSource(lambda: 8, lambda _: next(taken), InOrder(17), [(0, 17)], least=2)
    assert [*map(len, source)] == [8, 8]
