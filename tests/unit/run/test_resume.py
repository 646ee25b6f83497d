"""Going on: which checkpoint is taken, what may be changed, and what is refused."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass

import pytest
import torch

from ownpace import Config, InputError, Task
from ownpace.core.learning.state_file import read_state, write_state
from ownpace.fleet import read_fleet
from ownpace.run.checkpoints import Checkpoints
from ownpace.run.event_log import Position
from ownpace.run.resume import CHANGEABLE, about_run, find_resumption
from ownpace.tasks import Quadratic


def a_run(folder, config: Config, *samples: int):
    """A folder as a run that was cut off leaves it."""
    resolved = config.resolved(config.job(folder))
    folder.mkdir()
    resolved.save(folder / "config.json")
    for number in samples:
        about = about_run(resolved, Position(), [], 1.0)
        Checkpoints(folder).write(number, {"a": torch.tensor(number)}, about, kept=9)
    return folder


CONFIG = Config(task="quadratic", algorithm="stale", parameters={"staleness": 3}, samples=1000)


@pytest.fixture
def run(tmp_path):
    return a_run(tmp_path / "run", CONFIG, 100, 200, 300)


def test_it_goes_on_from_the_newest_with_the_runs_own_description(run):
    found = find_resumption(run, {})
    assert (found.run, found.samples, found.state["a"]) == (run, 300, 300)
    assert found.config == Config.load(run)
    assert found.is_newest()
    older = find_resumption(run / "checkpoints" / "000000000000100.safetensors", {})
    assert (older.run, older.samples, older.is_newest()) == (run, 100, False)


def test_what_makes_no_other_run_of_it_may_be_changed(run):
    changes = {"fleet": "x2", "epochs": 50.0, "seconds": 3.0, "checkpoint_every": 7, "on_failure": "stop", "seed": 0}
    config = find_resumption(run, {**changes, "parameters": {"staleness": "3"}}).config
    assert (config.fleet, config.samples, config.epochs, config.on_failure) == ("x2", None, 50.0, "stop")
    assert config.parameters["staleness"] == 3
    assert set(CHANGEABLE) <= set(Config.__dataclass_fields__)
    for change, reason in {
        "lr": "lr is 0.5, but the run at .* has 0.1, and a run that goes on cannot change that",
        "momentum": "momentum is 0.5",
    }.items():
        with pytest.raises(InputError, match=reason):
            find_resumption(run, {change: 0.5})
    with pytest.raises(InputError, match="algorithm is 'sync', but the run"):
        find_resumption(run, {"algorithm": "sync"})
    with pytest.raises(InputError, match="parameters is"):
        find_resumption(run, {"parameters": {"staleness": "4"}})
    with pytest.raises(InputError, match=r"samples is 300, but the checkpoint .* is at sample 300 already; give more"):
        find_resumption(run, {"samples": 300})


def test_a_damaged_one_is_passed_over_and_said(run, caplog):
    newest, middle, oldest = Checkpoints(run).newest_first()
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    newest.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        found = find_resumption(run, {})
    assert found.samples == 200
    assert found.is_newest()
    assert "checksum is wrong: it is damaged; going on from the one before it, at sample 200" in caplog.text
    with pytest.raises(
        InputError, match=f"checksum is wrong: it is damaged; the one before it is whole: .*{middle.name}"
    ):
        find_resumption(newest, {})
    for path in (middle, oldest):
        path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(InputError, match=r"has no checkpoint that is whole: .*300.*; .*200.*; .*100"):
        find_resumption(run, {})
    with pytest.raises(InputError, match="it is cut off, or not a checkpoint of ownpace; there is no older one"):
        find_resumption(oldest, {})


def test_a_foreign_one_is_refused_with_the_reason(run, tmp_path):
    other = a_run(tmp_path / "other", CONFIG.override(lr=0.5), 400)
    path = Checkpoints(other).newest_first()[0]
    path.rename(run / "checkpoints" / path.name)
    with pytest.raises(InputError, match=r"is of another run: its lr was 0\.5, but .*config\.json says 0\.1"):
        find_resumption(run, {})


def test_what_is_no_run_is_refused(run, tmp_path):
    with pytest.raises(InputError, match="neither the folder of a run nor a checkpoint in one"):
        find_resumption(tmp_path / "nowhere", {})
    with pytest.raises(InputError, match="neither the folder of a run nor a checkpoint in one"):
        find_resumption(run / "config.json", {})
    with pytest.raises(InputError, match="has no checkpoint to go on from; run it again: ownpace train --config"):
        find_resumption(none := a_run(tmp_path / "none", CONFIG), {})
    (none / "summary.json").write_text(json.dumps({"reason": "finished"}))
    with pytest.raises(InputError, match="has finished, and has no checkpoint; to train longer, run it again: own"):
        find_resumption(none, {})
    (run / "config.json").write_text("{")
    with pytest.raises(InputError, match=r"config\.json cannot be read"):
        find_resumption(run, {})


def test_a_run_that_has_finished_can_only_be_made_longer(run):
    (run / "summary.json").write_text(json.dumps({"reason": "finished"}))
    with pytest.raises(InputError, match="has finished; to train longer, give --epochs, --samples or --seconds"):
        find_resumption(run, {"fleet": "x2"})
    assert find_resumption(run, {"samples": 2000}).samples == 300
    assert find_resumption(run / "checkpoints" / "000000000000200.safetensors", {}).samples == 200


def test_things_of_the_users_own_are_given_again(tmp_path):
    @dataclass(frozen=True)
    class Mine(Quadratic):
        pass

    run = a_run(tmp_path / "mine", Config(task=Mine(), samples=1000), 100)
    with pytest.raises(InputError, match="cannot be made again"):
        find_resumption(run, {})
    task: Task = Mine()
    config = find_resumption(run, {"task": task, "fleet": read_fleet("x2")}).config
    assert config.task is task
    assert config.fleet == read_fleet("x2")


def test_what_says_too_little_of_its_run_is_refused(run):
    path = Checkpoints(run).newest_first()[0]
    about = read_state(path).about
    for name, value in {"records": {"bytes": 3}, "highlights": ["{"], "wall_seconds": "soon"}.items():
        write_state(path, {}, {**about, name: value})
        with pytest.raises(InputError, match="does not say how far its run was"):
            find_resumption(run, {})
    write_state(path, {}, {})
    with pytest.raises(InputError, match="is no checkpoint of ownpace train"):
        find_resumption(run, {})
