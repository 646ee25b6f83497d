"""Signals to ranks of torchrun's: one that is to end alone leaves in good order, and the others go on."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.process.started import PATIENCE_S, Start, Started, free_port, importable

pytestmark = pytest.mark.timeout(3 * PATIENCE_S)
KEY = "a key that all hosts were given"


class Ranks:
    """Three ranks without torchrun, whose agent would end the others of its host."""

    def __init__(self, start: Start, folder: Path, algorithm: str, **settings: Any) -> None:
        self._start, self._folder = start, folder
        settings = {"asked": [(500, [1])], "signal": "SIGTERM", "awaited": ["leave"], **settings}
        module = "tests.process.scenarios_departures"
        self._command = [sys.executable, "-m", module, str(folder), algorithm, json.dumps(settings)]
        address = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        self._environment = {**address, "PYTHONPATH": importable(), "OWNPACE_KEY": KEY}
        self._hosts = {"LOCAL_WORLD_SIZE": "1", "GROUP_WORLD_SIZE": "3"} if "hosts" in settings else {}
        self.ranks = [self.begin(rank) for rank in range(3)]

    def begin(self, rank: int) -> Started:
        """Start a rank; where each has a host of its own, it is the first one there."""
        place = {"LOCAL_RANK": "0", "GROUP_RANK": str(rank)} if self._hosts else {}
        return self._start(self._command, RANK=str(rank), **self._environment, **self._hosts, **place)

    def end(self) -> list[int]:
        """Wait for all of them; returns their exit codes."""
        return [rank.ends() for rank in self.ranks]

    def told(self, rank: int) -> dict[str, Any]:
        """What a rank wrote at its end."""
        written: dict[str, Any] = json.loads((self._folder / f"{rank}.json").read_text())
        return written


def check_counts(seen: dict[str, Any]) -> None:
    """In the last checkpoint, every sample that was dealt counts, once."""
    assert seen["wrong"] == []
    assert seen["dealt"] == seen["checkpoint"] >= 500


def slowly(*values: object) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("algorithm", "signal"),
    [
        ("sync", "SIGTERM"),
        *(
            slowly(*each)
            for each in (("sync", "SIGINT"), ("pace", "SIGTERM"), ("stride", "SIGTERM"), ("async", "SIGTERM"))
        ),
    ],
)
def test_a_rank_that_is_told_to_end_leaves_and_the_others_go_on(start, tmp_path, algorithm, signal):
    ranks = Ranks(start, tmp_path, algorithm, signal=signal)
    assert ranks.end() == [130, 130, 0], ranks.ranks[0].stderr + ranks.ranks[1].stderr
    said = re.fullmatch(
        f"interrupted by {signal} at sample (\\d+); the others go on without this rank", ranks.told(1)["reason"]
    )
    assert said
    assert int(said[1]) >= 500
    seen = ranks.told(0)
    assert f"worker-1 left after {signal}; the others go on" in ranks.ranks[0].stderr
    assert seen["faults"] == [["worker-1", "leave"]]
    # At a border, and not as after a death: nothing was thrown away.
    assert ["leave", ["worker-0", "worker-2"], 0] in seen["generations"]
    assert {why for why, *_ in seen["generations"]} == {"leave", "checkpoint"}
    check_counts(seen)
    assert seen["reason"].startswith("interrupted at sample ")


@pytest.mark.slow
def test_a_rank_that_comes_to_no_border_in_time_leaves_without_one(start, tmp_path):
    ranks = Ranks(start, tmp_path, "sync", awaited=["death"], to_border_s=0.0)
    assert ranks.end() == [130, 130, 0], ranks.ranks[0].stderr + ranks.ranks[1].stderr
    seen = ranks.told(0)
    assert "the others go on without this rank" in ranks.told(1)["reason"]
    assert seen["faults"] == [["worker-1", "leave"]]
    check_counts(seen)


@pytest.mark.slow
def test_a_second_signal_ends_a_rank_at_once_and_the_others_go_on(start, tmp_path):
    twice = [(500, [1]), (1000, [1])]
    ranks = Ranks(start, tmp_path, "sync", asked=twice, awaited=["death"], moment_s=10_000.0)
    assert ranks.end() == [130, 130, 0], ranks.ranks[0].stderr + ranks.ranks[1].stderr
    seen = ranks.told(0)
    assert ranks.told(1)["reason"] == "interrupted by a second SIGTERM"
    assert "worker-1 left after SIGTERM; the others go on" in ranks.ranks[0].stderr
    assert seen["faults"] == [["worker-1", "leave"]]
    check_counts(seen)


@pytest.mark.slow
def test_a_rank_that_has_left_comes_back_when_it_is_started_again(start, tmp_path):
    ranks = Ranks(start, tmp_path, "sync", awaited=["leave", "join"])
    assert ranks.ranks[1].ends() == 130
    ranks.ranks[1] = ranks.begin(1)
    assert ranks.end() == [130, 0, 0], ranks.ranks[0].stderr + ranks.ranks[1].stderr
    seen = ranks.told(0)
    assert ["join", ["worker-0", "worker-1", "worker-2"], 0] in seen["generations"]
    assert seen["faults"] == [["worker-1", "leave"]]
    check_counts(seen)


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        slowly("sync", {"min_workers": 3}),
        slowly("stride", {"on_failure": "stop"}),
        slowly("async", {"hosts": [1]}),  # the only server ends with the rank that started it
    ],
)
def test_a_run_that_cannot_go_on_without_a_rank_ends_in_order_with_a_last_checkpoint(
    start, tmp_path, algorithm, settings
):
    ranks = Ranks(start, tmp_path, algorithm, awaited=[], **settings)
    assert ranks.end() == [130, 0, 0], ranks.ranks[0].stderr + ranks.ranks[1].stderr
    seen = ranks.told(0)
    who = "(worker-1 got SIGTERM, and the others cannot go on without it)"
    assert re.fullmatch(
        f"interrupted at sample \\d+ {re.escape(who)}; everything up to then has been written", seen["reason"]
    )
    assert seen["faults"] == []
    check_counts(seen)


@pytest.mark.slow
@pytest.mark.parametrize("asked", [[1, 2, 0], [0, 2, 1]])
def test_a_signal_to_all_ranks_ends_the_run_whoever_gets_it_first(start, tmp_path, asked):
    ranks = Ranks(start, tmp_path, "sync", asked=[(500, asked)], awaited=[], moment_s=10_000.0)
    assert ranks.end() == [130, 0, 0], ranks.ranks[0].stderr + ranks.ranks[1].stderr
    seen = ranks.told(0)
    assert re.fullmatch(r"interrupted at sample \d+; everything up to then has been written", seen["reason"])
    assert [why for why, *_ in seen["generations"]] == ["checkpoint"]
    assert seen["faults"] == []
    check_counts(seen)
