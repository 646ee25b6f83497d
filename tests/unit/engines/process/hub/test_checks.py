"""What nodes tell the hub has to fit the run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ownpace.algorithms import make_algorithm
from ownpace.core.contract import events
from ownpace.core.contract.errors import WireError
from ownpace.core.learning.layout import Layout
from ownpace.engines.ledger import UpdateTotals
from ownpace.engines.process.hub.checks import HubChecks
from ownpace.engines.process.hub.config import HubConfig
from ownpace.engines.process.hub.journal import Journal
from ownpace.engines.process.talk.control import Control, Ended, Leaving, Report, Snapshot, WorkDone, WorkerBuffers
from ownpace.engines.process.talk.replica_control import Apart, Checksums
from ownpace.engines.roster import Roster

LAYOUT = Layout.of([("weight", torch.Size([4]), False), ("bias", torch.Size([2]), False)])
ROSTER = Roster.plan(make_algorithm("async"), ["worker-0", "worker-1"], 2, LAYOUT)
CHECKS = HubChecks(ROSTER, num_layers=2, num_buffers=3)


def report(**changes: list[str]) -> Report:
    return Report(0.5, UpdateTotals(), WorkDone(), **{"events": [], **changes})


def test_what_nodes_say_passes():
    for control, body in (
        (report(), None),
        (Snapshot(0.0, 1, 1, 0, False), torch.zeros(4)),
        (Snapshot(0.0, 1, 1, 1, False), torch.zeros(2)),
        (WorkerBuffers(), torch.zeros(3)),
        (Checksums(1, [1, 2]), None),
        (Apart(1, 1, 1, 1e-8, 1e-6), None),
        (Ended([]), None),
        (Ended([1, 2]), None),
        (Leaving("SIGTERM", ["server-0"]), None),
    ):
        CHECKS.check(control, body)


@pytest.mark.parametrize(
    ("control", "body", "words"),
    [
        (Snapshot(0.0, 1, 1, 2, False), torch.zeros(2), "shard 2; there are 2"),
        (Snapshot(0.0, 1, 1, 0, False), torch.zeros(2), "2 values of type torch.float32 for a shard of 4"),
        (Snapshot(0.0, 1, 1, 0, False), torch.zeros(4, dtype=torch.int64), "type torch.int64 for a shard of 4"),
        (Snapshot(0.0, 1, 1, 0, False), None, "no values for a shard of 4"),
        (WorkerBuffers(), torch.zeros(4), "buffers of 4 values of type torch.float32; the model's have 3"),
        (WorkerBuffers(), None, "buffers of no values"),
        (Checksums(1, [1]), None, "checksums of 1 layers; there are 2"),
        (Apart(1, 1, 2, 1e-8, 1e-6), None, "layer 2 differs; there are 2"),
        (Leaving("SIGN", []), None, "'SIGN' asks it to leave"),
        (Leaving("SIGTERM", ["worker-0"]), None, r"asks it to leave, with \['worker-0'\]"),
        (Ended([1, 2, 3]), None, "checksums of 3 layers; there are 2"),
        (Report(0.5, UpdateTotals(), WorkDone(spans=[[1.0]]), []), None, "spans"),
    ],
)
def test_what_does_not_fit_is_refused(control: Control, body: torch.Tensor | None, words: str):
    with pytest.raises(WireError, match=words):
        CHECKS.check(control, body)


@pytest.mark.parametrize(
    "line", ["", "null", "5", "[]", "{}", '{"kind":"x"}', '{"kind":"wait"}', "[" * 10**5, '{"kind":"end","sums":[]}']
)
def test_of_a_report_with_a_line_that_is_no_event_nothing_is_taken_in(line):
    written: list[events.Event] = []
    header: Any = None  # neither is asked for
    elasticity: Any = None
    journal = Journal(ROSTER, HubConfig(header, ["weight", "bias"], written.append, elasticity))
    good = events.to_line(events.Wait(0.0, 1.0, "worker-0", "message"))
    with pytest.raises(WireError, match="a line that is no event"):
        journal.take("worker-0", report(events=[good, line]))
    assert written == []
    journal.take("worker-0", report(events=[good]))
    assert len(written) == 1
