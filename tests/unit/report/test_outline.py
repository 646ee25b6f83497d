"""What a figure needs of a run, kept while it lasts."""

from __future__ import annotations

import tracemalloc

from ownpace.core.contract.events import Run, Wait
from ownpace.report.outline import MOST_ROWS, MOST_SPANS, RunOutline

WORKERS = [f"worker-{rank}" for rank in range(MOST_ROWS)]


def an_outline(num_spans: int) -> RunOutline:
    """Of a run in which every worker has waited so many times."""
    outline = RunOutline([Run("sync", "process", "digits", "mlp", 0, 8, 8, 10, 40, 100, 0.8, {"workers": WORKERS})])
    for start in range(num_spans):
        for worker in WORKERS:
            outline.take(Wait(float(start), start + 0.5, worker, "all-reduce"))
    return outline


def test_spans_are_those_that_were_noted():
    spans = an_outline(3).spans["wait", 7]
    assert len(spans) == 3
    assert list(spans) == [(0.0, 0.5), (1.0, 1.5), (2.0, 2.5)]


def test_a_long_run_is_known_up_to_where_its_memory_is_full():
    outline = an_outline(MOST_SPANS + 2)
    assert {len(spans) for spans in outline.spans.values()} == {MOST_SPANS}
    assert outline.known_until == MOST_SPANS


def test_a_span_takes_little_more_memory_than_two_numbers():
    """With pairs of Python's numbers, the process that records a run grew by 20 MB over half an hour."""
    tracemalloc.start()
    try:
        outline = an_outline(MOST_SPANS)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 24 * sum(map(len, outline.spans.values()))
