"""`ownpace train` under torchrun: one folder, one error, and no process is left."""

from __future__ import annotations

import json
import os
import signal

import pytest
from tests.process.started import FOR_LONG, PATIENCE_S, check_folder, torchrun_train, until

from ownpace.core.contract.event_file import read_events
from ownpace.core.contract.events import End
from ownpace.run.checkpoints import Checkpoints
from ownpace.run.standing import standing_of

pytestmark = pytest.mark.timeout(3 * PATIENCE_S)


def test_torchrun_writes_one_folder(start, tmp_path):
    often = ("--checkpoint-every", "600")
    run = start(torchrun_train("--algorithm", "async", "--samples", "2000", "--log-files", *often))
    assert run.ends() == 0, run.stderr
    end = check_folder(run.out)
    assert end.sums.samples >= 2000
    assert len(run.stdout.splitlines()) == 1
    assert json.loads(run.stdout)["engine"] == "process"
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["out"]
    logs = {path.name: path.read_text() for path in (run.out / "logs").iterdir()}
    assert sorted(logs) == ["rank-0.log", "rank-1.log", "server-0.log"]
    assert all(" starts" in text for text in logs.values())
    # All ranks came to the same borders, though one of them writes.
    found = [(each.samples // 600, each.problem) for each in standing_of(run.out).checkpoints]
    assert found == [(3, None), (2, None)]


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["rank 1", "rank 0", "server-0"])
def test_no_process_outlives_a_torchrun_that_lost_one(start, victim):
    run = start(torchrun_train("--algorithm", "async", "--on-failure", "stop", *FOR_LONG))
    run.until_training()
    os.kill(run.helper() if victim == "server-0" else run.ranks()[int(victim[-1])], signal.SIGKILL)
    assert run.ends() != 0
    if victim == "server-0":
        assert any("server-0 was killed by SIGKILL" in line for line in run.errors)
    if victim != "rank 0":  # which writes the folder
        (end,) = (event for event in read_events(run.out / "events.jsonl") if isinstance(event, End))
        assert end.reason != "finished"


def test_an_agent_that_is_killed_while_ranks_meet_anew_takes_their_store_along_and_not_what_they_learnt(start):
    """Each checkpoint is a border, where they write into the store and remove what they wrote."""
    run = start(torchrun_train("--algorithm", "stride", "--checkpoint-every", "64", *FOR_LONG, "--fleet", "x2"))
    until(lambda: Checkpoints(run.out).newest_first(), "there is a checkpoint")
    run.process.kill()
    assert run.ends() == -signal.SIGKILL
    assert "Traceback" not in run.stderr
    *_, end = read_events(run.out / "events.jsonl")
    assert isinstance(end, End)
    assert (run.out / "model.safetensors").exists()
    assert run.hint.startswith("ownpace: go on from sample ")


@pytest.mark.slow
def test_ctrl_c_ends_torchrun_in_order(start):
    run = start(torchrun_train("--algorithm", "async", *FOR_LONG))
    run.until_training()
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.ends() != 0
    (error,) = set(run.errors)
    assert "interrupted at sample" in error
    check_folder(run.out, error)
    newest = standing_of(run.out).checkpoints[0].samples
    assert run.hint == f"ownpace: go on from sample {newest:,} with: ownpace train --resume out"


@pytest.mark.slow
def test_where_rank_0_is_stopped_rank_1_says_how_to_go_on_after_a_signal(start):
    run = start(torchrun_train("--algorithm", "sync", "--checkpoint-every", "600", *FOR_LONG), OWNPACE_SILENCE_S="3")
    until(lambda: Checkpoints(run.out).newest_first(), "there is a checkpoint")
    os.kill(run.ranks()[0], signal.SIGSTOP)
    run.process.terminate()
    assert run.ends() != 0
    assert any("did not end within 15 s after SIGTERM" in line for line in run.errors)
    assert run.hint.startswith("ownpace: go on from sample ")
