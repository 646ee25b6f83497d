"""Ranks of a user's script that die or fall silent: the others' loops go on, and every sample counts once an epoch."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.process.started import PATIENCE_S, Start, Started, free_port, importable, until

pytestmark = pytest.mark.timeout(3 * PATIENCE_S)
SCENARIOS = "tests.process.scenarios_deaths"
SAMPLES = 4 * 403
"""Of two loops of two epochs."""


def where(num_ranks: int, **environment: str) -> dict[str, str]:
    """Where ranks meet."""
    shared = {"WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return {**shared, "PYTHONPATH": importable(), **environment}


def started(start: Start, folder: Path, meeting: dict[str, str], rank: int, *words: str) -> Started:
    """A rank without torchrun, which would end the others itself."""
    return start([sys.executable, "-m", SCENARIOS, str(folder), *words], RANK=str(rank), **meeting)


def by_hand(start: Start, folder: Path, num_ranks: int, *words: str, **environment: str) -> list[Started]:
    meeting = where(num_ranks, **environment)
    return [started(start, folder, meeting, rank, *words) for rank in range(num_ranks)]


def seen(folder: Path, rank: int) -> dict[str, Any]:
    """What a rank wrote."""
    written: dict[str, Any] = json.loads((folder / f"{rank}.json").read_text())
    return written


def check_survivors(ranks: list[Started], folder: Path, survivors: list[int], *, replicas: bool = True) -> None:
    """All of them came to the end, with every sample learnt from once an epoch, and with the same model."""
    for rank in survivors:
        assert ranks[rank].ends() == 0, ranks[rank].stderr
    found = [seen(folder, rank) for rank in survivors]
    for one in found:
        assert one["workers"] == len(survivors)
        assert one["present"] == survivors
        assert one["average"] == sum(survivors) / len(survivors)
        assert one["samples"] == SAMPLES
        assert one["epoch"] == 4
        assert one["wrong"] == {}
        assert one["identical"] is (True if replicas else None)
    assert len({(one["model"], one["updates"]) for one in found}) == 1


RANDOM = random.Random(os.environ.get("OWNPACE_TEST_SEED", "1"))


def some_death(rank: int) -> str:
    """At a moment drawn at random."""
    return f"{rank}:{RANDOM.randrange(2)}:{RANDOM.randrange(1, 12)}:{RANDOM.randrange(60)}"


def slowly(*all_: Any) -> list[Any]:
    return [pytest.param(*each, marks=pytest.mark.slow) for each in all_]


@pytest.mark.parametrize(
    ("algorithm", "deaths"),
    [
        ("sync", ["2:0:3:kill"]),
        *slowly(
            ("async", [some_death(1)]),
            ("sync", ["1:1:0:step", "2:1:-:kill"]),
            ("balanced", [some_death(2)]),
            ("balanced", ["1:0:2:step"]),
            ("pace", [some_death(1)]),
            ("pace", [some_death(1), some_death(2)]),
            ("async", ["1:0:5:kill", "2:1:0:kill"]),
            ("stale", [some_death(2)]),
            ("grouping", [some_death(1)]),
            ("sync", ["1:0:4:kill", "sampling=shards"]),
            ("pace", [some_death(2), "workers=2"]),
            # Not at any moment: between the updates of two models, the second would not learn from that batch.
            ("balanced", ["1:0:4:kill", "models=2"]),
        ),
    ],
)
def test_the_others_go_on_and_every_sample_counts_once(
    start: Start, tmp_path: Path, algorithm: str, deaths: list[str]
) -> None:
    ranks = by_hand(start, tmp_path, 3, "counted", algorithm, *deaths)
    dead = {int(each[0]) for each in deaths if "=" not in each}
    for rank in dead:
        assert ranks[rank].ends() == -signal.SIGKILL
    servers = algorithm in ("async", "stale", "grouping")
    check_survivors(ranks, tmp_path, sorted({0, 1, 2} - dead), replicas=not servers)
    assert all(f"worker-{rank} is gone" in ranks[0].stderr for rank in dead)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["pace", "sync"])
def test_optimizers_and_schedules_of_the_others_are_the_same_afterwards(
    start: Start, tmp_path: Path, algorithm: str
) -> None:
    ranks = by_hand(start, tmp_path, 3, "adamw", algorithm, some_death(1))
    check_survivors(ranks, tmp_path, [0, 2])
    found = [seen(tmp_path, rank) for rank in (0, 2)]
    assert found[0]["state"] == found[1]["state"]
    assert [one["rate"] for one in found] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("model", "algorithm", "death", "more"),
    [
        ("adamw", "pace", "2:0:3:kill", []),
        *slowly(
            ("counted", "sync", "2:0:3:kill", []),
            ("counted", "async", "2:1:3:20", ["from_epoch=1"]),
            ("counted", "balanced", "2:1:2:kill", []),
            ("adamw", "pace", "1:1:3:20", []),
            ("counted", "pace", "2:0:5:kill", ["from_epoch=1", "sampling=shards"]),
        ),
    ],
)
def test_a_rank_that_is_started_again_joins_in_the_running_loop(
    start: Start, tmp_path: Path, model: str, algorithm: str, death: str, more: list[str]
) -> None:
    who, meeting = int(death[0]), where(3)
    words = [model, algorithm, f"back={tmp_path / 'back'}.{who}", *more]
    ranks = [started(start, tmp_path, meeting, rank, *words, death) for rank in range(3)]
    assert ranks[who].ends() == -signal.SIGKILL
    ranks[who] = started(start, tmp_path, meeting, who, *words, "again=1")
    check_survivors(ranks, tmp_path, [0, 1, 2], replicas=algorithm != "async")
    found = [seen(tmp_path, rank) for rank in range(3)]
    assert found[who]["batches"] > 0
    assert len({one["state"] for one in found}) == 1
    # Of calls that it has missed, it gets what they gave; or it has not asked.
    assert found[who]["losses"] == found[0]["losses"][-len(found[who]["losses"]) :]
    assert found[0]["losses"] == [{"loop": 0}, {"loop": 1}]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "deaths"),
    [("local", [some_death(2)]), ("stride", [some_death(2)]), ("stride", ["1:0:3:step", "2:1:-:kill"])],
)
def test_local_steps_are_forgotten_with_the_round_that_they_were_for(
    start: Start, tmp_path: Path, algorithm: str, deaths: list[str]
) -> None:
    ranks = by_hand(start, tmp_path, 3, "adamw", algorithm, *deaths)
    check_survivors(ranks, tmp_path, sorted({0, 1, 2} - {int(death[0]) for death in deaths}))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_rank_that_goes_its_own_way_joins_again(start: Start, tmp_path: Path, how: str) -> None:
    """Started again, or back after it was declared dead, while the others train ahead of their sums."""
    meeting = where(3, OWNPACE_SILENCE_S="3")
    words = ["adamw", "stride", f"back={tmp_path / 'back'}.2"]
    ranks = [started(start, tmp_path, meeting, rank, *words, f"2:0:3:{how}") for rank in range(3)]
    if how == "kill":
        assert ranks[2].ends() == -signal.SIGKILL
        ranks[2] = started(start, tmp_path, meeting, 2, *words, "again=1")
    else:
        until(lambda: "worker-2 is gone" in ranks[0].stderr, "it is declared dead")
        os.kill(ranks[2].process.pid, signal.SIGCONT)
    check_survivors(ranks, tmp_path, [0, 1, 2])


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["sync", "async"])
def test_a_rank_that_falls_silent_is_done_without(start: Start, tmp_path: Path, algorithm: str) -> None:
    ranks = by_hand(start, tmp_path, 3, "counted", algorithm, "2:0:3:stop", OWNPACE_SILENCE_S="3")
    check_survivors(ranks, tmp_path, [0, 1], replicas=algorithm == "sync")


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "death"), [("pace", "0:1:3:kill"), ("sync", "0:1:-:kill")])
def test_without_rank_0_all_end_and_know_what_to_go_on_from(
    start: Start, tmp_path: Path, algorithm: str, death: str
) -> None:
    ranks = by_hand(start, tmp_path, 3, "counted", algorithm, death, f"save={tmp_path / 'saved.pt'}")
    assert ranks[0].ends() == -signal.SIGKILL
    died_s = time.time()
    for rank in (1, 2):
        assert ranks[rank].ends() == 1, ranks[rank].stderr
        told = seen(tmp_path, rank)
        assert told["kind"] == "MachineDied"
        assert told["text"].startswith("rank 0 is gone: its process ended without a word")
        assert told["text"].endswith(f"go on with fleet.load('{tmp_path / 'saved.pt'}')")
        assert told["at"] < died_s + PATIENCE_S


@pytest.mark.slow
@pytest.mark.parametrize("option", ["on_failure=stop", "min_workers=3"])
def test_a_run_that_is_not_to_go_on_ends(start: Start, tmp_path: Path, option: str) -> None:
    ranks = by_hand(start, tmp_path, 3, "counted", "sync", "2:0:3:kill", option)
    for rank in (0, 1):
        assert ranks[rank].ends() == 1, ranks[rank].stderr
        assert "2 is gone" in seen(tmp_path, rank)["text"]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["sync", "async"])
def test_a_rank_that_is_back_after_it_was_declared_dead_joins_anew(
    start: Start, tmp_path: Path, algorithm: str
) -> None:
    words = ["counted", algorithm, "2:0:3:stop", f"back={tmp_path / 'back'}.2"]
    ranks = by_hand(start, tmp_path, 3, *words, OWNPACE_SILENCE_S="2")
    until(lambda: "worker-2 is gone" in ranks[0].stderr, "it is declared dead")
    os.kill(ranks[2].process.pid, signal.SIGCONT)
    check_survivors(ranks, tmp_path, [0, 1, 2], replicas=algorithm == "sync")
    assert "the others went on without it; it joins anew" in ranks[2].stderr


@pytest.mark.slow
def test_ranks_end_without_one_that_dies_after_the_last_loop(start: Start, tmp_path: Path) -> None:
    ranks = by_hand(start, tmp_path, 3, "counted", "async", "2:2:-:kill")
    for rank in (0, 1):
        assert ranks[rank].ends() == 0, ranks[rank].stderr
        assert seen(tmp_path, rank)["wrong"] == {}
        assert seen(tmp_path, rank)["workers"] == 2
