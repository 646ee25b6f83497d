"""How far Python runs ahead of a GPU."""

from __future__ import annotations

import pytest

from ownpace.engines.process.node.gpu import Lead


def test_the_next_graph_is_queued_as_long_before_as_queueing_takes() -> None:
    lead = Lead()
    assert lead.seconds == pytest.approx(0.0015)
    lead.goes_on(10.0)
    lead.has_queued(10.004)
    assert lead.seconds == pytest.approx(0.005)
    lead.has_queued(11.0)  # the second graph in a row: nothing was measured
    assert lead.seconds == pytest.approx(0.005)
    lead.goes_on(12.0)
    lead.has_queued(12.0001)
    assert lead.seconds == pytest.approx(0.0045)  # a sum, which takes longer, comes again soon
    lead.goes_on(13.0)
    lead.has_queued(14.0)  # that was a wait for others
    assert lead.seconds == pytest.approx(0.006)
    for _ in range(20):
        lead.goes_on(15.0)
        lead.has_queued(15.0)
    assert lead.seconds == pytest.approx(0.0015)
