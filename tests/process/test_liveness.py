"""No rank waits for ever for another: whoever leaves, in whatever way, is named by all others, and they end."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.process.started import PATIENCE_S, Start, Started, free_port, importable, torchrun

pytestmark = pytest.mark.timeout(3 * PATIENCE_S)
SCENARIOS = "tests.process.scenarios_liveness"
SILENCE_S = 4


def by_hand(start: Start, folder: Path, num_ranks: int, *words: str, **environment: str) -> list[Started]:
    """Ranks without torchrun, which would end the others itself."""
    shared = {"WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, "-m", SCENARIOS, str(folder), *words]
    return [
        start(command, PYTHONPATH=importable(), RANK=str(rank), **shared, **environment) for rank in range(num_ranks)
    ]


def told(folder: Path, rank: int) -> dict[str, Any]:
    """What a rank wrote."""
    written: dict[str, Any] = json.loads((folder / f"{rank}.json").read_text())
    return written


def check_named(start: Start, folder: Path, num_ranks: int, algorithm: str, who: int, where: str, how: str) -> None:
    """All others end, and say who has left."""
    ranks = by_hand(start, folder, num_ranks, algorithm, str(who), where, how)
    said = 'KeyError: "the user\'s own mistake"' if how == "raise" else "SystemExit: 3" if how == "sys.exit" else ""
    # A failure is told by whoever hears of it first: the ranks' own line, or the hub, which knows nodes by their names.
    words = (f"rank {who}: {said}", f"worker-{who}: {said}") if said else (f"rank {who} is gone: its process ended",)
    for rank, started in enumerate(ranks):
        code = started.ends()
        if rank != who:
            assert code == 1, started.stderr
            text = told(folder, rank)["text"]
            assert any(each in text for each in words), text


LEAVING = [
    pytest.param(3, "async", 1, "in loop 0", "os._exit 0"),
    pytest.param(2, "pace", 0, "after wrap", "os._exit 3"),
    *(
        pytest.param(*each, marks=pytest.mark.slow)
        for each in [
            (3, "sync", 1, "in loop 0", "os._exit 0"),
            (2, "sync", 0, "in loop 1", "os._exit 3"),
            (2, "pace", 1, "in loop 1", "os._exit 3"),
            (2, "pace", 0, "in loop 0", "raise"),
            (3, "local", 2, "in loop 0", "os._exit 0"),
            (3, "local", 0, "in loop 0", "os._exit 0"),
            (2, "async", 0, "in loop 1", "os._exit 3"),
            (3, "async", 2, "in loop 1", "raise"),
            (2, "sync", 1, "after join", "os._exit 0"),
            (2, "async", 0, "after join", "raise"),
            (2, "sync", 1, "before loop 1", "os._exit 0"),
            (2, "async", 1, "before loop 1", "sys.exit"),
            (2, "local", 0, "before loop 1", "os._exit 3"),
            (2, "pace", 1, "after loops", "os._exit 0"),
            (2, "sync", 0, "after loops", "os._exit 3"),
            (2, "async", 0, "after loops", "sys.exit"),
        ]
    ),
]


@pytest.mark.parametrize(("num_ranks", "algorithm", "who", "where", "how"), LEAVING)
def test_a_rank_that_leaves_is_named_by_all_others(
    start: Start, tmp_path: Path, num_ranks: int, algorithm: str, who: int, where: str, how: str
) -> None:
    check_named(start, tmp_path, num_ranks, algorithm, who, where, how)


def test_a_loop_does_not_end_as_by_a_break_where_another_rank_has_raised(start: Start, tmp_path: Path) -> None:
    """After a loop, a script may save the model as if all were well."""
    check_named(start, tmp_path, 2, "sync", 1, "in loop 0", "raise")
    assert told(tmp_path, 0)["ended"] == []


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "who"), [("sync", 1), ("pace", 0), ("async", 1)])
def test_a_rank_that_falls_silent_is_named_though_nothing_was_closed(
    start: Start, tmp_path: Path, algorithm: str, who: int
) -> None:
    ranks = by_hand(start, tmp_path, 3, algorithm, str(who), "in loop 0", "stop", OWNPACE_SILENCE_S=str(SILENCE_S))
    for rank in {0, 1, 2} - {who}:
        assert ranks[rank].ends() == 1, ranks[rank].stderr
        assert f"rank {who} is gone" in told(tmp_path, rank)["text"]
        assert f"did not answer for {SILENCE_S} s" in told(tmp_path, rank)["text"]


@pytest.mark.parametrize(
    ("algorithm", "who", "how"),
    [
        ("sync", 1, "SIGTERM"),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in [("async", 1, "SIGINT"), ("pace", 0, "SIGINT")]),
    ],
)
def test_a_rank_that_is_told_to_end_does_not_end_the_others_as_if_all_were_learnt(
    start: Start, tmp_path: Path, algorithm: str, who: int, how: str
) -> None:
    for rank, started in enumerate(by_hand(start, tmp_path, 2, algorithm, str(who), "in loop 0", how)):
        assert started.ends() == 1, started.stderr
        assert f"interrupted (rank {who} got {how})" in told(tmp_path, rank)["text"]


@pytest.mark.slow
@pytest.mark.parametrize("who", [0, 1])
def test_torchrun_ends_with_a_rank_that_leaves_cleanly(start: Start, tmp_path: Path, who: int) -> None:
    """Its agent takes that for a success, and leaves the others running."""
    words = ["pace", str(who), "before loop 1", "os._exit 0"]
    started = start(torchrun("-m", SCENARIOS, str(tmp_path), *words), PYTHONPATH=importable())
    assert started.ends() != 0
    assert f"rank {who} is gone: its process ended without a word" in told(tmp_path, 1 - who)["text"]


@pytest.mark.parametrize(
    ("who", "where", "words"),
    [
        (1, "before loop 1", "rank 1 left after 1 loop over fleet.batches, rank 0 began its second loop over"),
        pytest.param(
            1,
            "smaller",
            "the ranks do not fit together in their second loop over fleet.batches: the number of samples of rank 1 "
            "is 32, that of rank 0 is 64",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_ranks_whose_loops_differ_are_told_how(start: Start, tmp_path: Path, who: int, where: str, words: str) -> None:
    ranks = by_hand(start, tmp_path, 2, "sync", str(who), where, "skip")
    for rank, started in enumerate(ranks):
        assert started.ends() == 1, started.stderr
        assert told(tmp_path, rank)["kind"] == "InputError"
        assert told(tmp_path, rank)["text"].startswith(words)


def test_what_ranks_tell_each_other(start: Start, tmp_path: Path) -> None:
    started = start(torchrun("-m", SCENARIOS, str(tmp_path), "calls"), PYTHONPATH=importable())
    assert started.ends() == 0, started.stderr
    ranks = [told(tmp_path, rank) for rank in range(2)]
    assert [rank.pop("main") for rank in ranks] == [True, False]
    assert started.stdout.count("printed by rank") == 1
    assert ranks[0] == ranks[1]
    seen = ranks[0]
    assert seen["before wrap"] == {"loss": 1.0, "count": [3]}
    assert seen["mean"] == [0.5, 3.0]
    for message, total in seen["loops"]:
        assert message.startswith("fleet.barrier was called within a loop over fleet.batches")
        assert total == 2
    assert seen["ragged"] == [[0], [0, 1]]
    assert seen["after"] == 1
    assert "torch.float32 (2,) on rank 1, and torch.float32 (1,) on rank 0" in seen["other shapes"]
    assert seen["afterwards"] == [{"rank": 0, "name": "x"}, {"rank": 1, "name": "x"}]
    assert seen["again"] == [0, 1]
    assert "rank 0 called fleet.reduce(op='mean'), rank 1 called fleet.barrier" in seen["different calls"]
    assert "rank 0 called fleet.barrier, rank 1 began its first loop over fleet.batches" in seen["a loop"]
    assert "rank 1 left after 0 loops over fleet.batches, rank 0 called fleet.gather" in seen["the end"]
