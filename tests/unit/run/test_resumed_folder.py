"""The folder of a run that goes on: what is cut off, what is kept, and that nothing is touched before it has begun."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.limits import largest_file

from ownpace import Config, InputError, OwnpaceError, execute, train
from ownpace.run.checkpoints import Checkpoints, samples_of
from ownpace.run.folder_lock import FolderLock
from ownpace.run.recording import Result
from ownpace.run.resume import find_resumption

CONFIG = Config(
    task="quadratic", fleet="2,1", samples=1000, checkpoint_every=200, batch_size=8, checkpoints_kept=3, eval_every=300
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    execute(CONFIG, folder)
    return folder


@pytest.fixture
def cut_off(whole, tmp_path):
    """As a run that was killed leaves it: no last records, no results."""
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    for name in ("model.safetensors", "summary.json"):
        (run / name).unlink()
    events = run / "events.jsonl"
    events.write_bytes(events.read_bytes()[:-1500])
    return run


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def go_on(path: Path, out: Path | None = None, *, overwrite: bool = False, **changes: Any) -> Result:
    found = find_resumption(path, changes)
    return execute(found.config, out or found.run, overwrite=overwrite, resumption=found)


def results(run: Path) -> tuple[bytes, bytes, dict[str, object]]:
    summary = json.loads((run / "summary.json").read_text())
    shown = {name: value for name, value in summary.items() if name not in ("wall_seconds", "out")}
    return (run / "events.jsonl").read_bytes(), (run / "model.safetensors").read_bytes(), shown


def test_what_cannot_go_on_is_left_as_it_was(cut_off, tmp_path):
    before = contents(cut_off)
    for out in (cut_off, tmp_path / "copy"):
        with pytest.raises(InputError, match="has no pace"):
            go_on(cut_off, out, fleet="x2")  # virtual time cannot guess paces
        assert contents(cut_off) == before
    assert not (tmp_path / "copy").exists()


def test_a_run_that_has_not_ended_cannot_be_gone_on_with_but_in_a_copy(whole, cut_off, tmp_path):
    lock = FolderLock(cut_off)
    before = contents(cut_off)
    with pytest.raises(InputError, match="has not ended: another process writes there"):
        go_on(cut_off)
    go_on(cut_off, tmp_path / "copy")
    assert contents(cut_off) == before
    lock.release()
    (cut_off / ".summary.json.0123abcd.part").touch()
    go_on(cut_off)
    assert results(cut_off) == results(tmp_path / "copy") == results(whole)
    assert not list(cut_off.glob(".*"))


def test_in_another_folder_the_first_stays_as_it_was(whole, cut_off, tmp_path):
    before = contents(cut_off)
    result = go_on(cut_off, tmp_path / "copy")
    assert contents(cut_off) == before
    assert results(tmp_path / "copy") == results(whole)
    assert result.folder == tmp_path / "copy"
    assert result.checkpoint is not None
    assert result.checkpoint.parent == tmp_path / "copy" / "checkpoints"
    with pytest.raises(InputError, match="already holds a run"):
        go_on(cut_off, tmp_path / "copy", overwrite=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="is not empty"):
        go_on(cut_off, tmp_path / "mine")


def test_from_an_older_checkpoint_nothing_newer_is_lost_unasked(whole, cut_off, tmp_path):
    oldest = Checkpoints(cut_off).newest_first()[-1]
    before = contents(cut_off)
    with pytest.raises(InputError, match="is not the newest checkpoint of the run, and newer ones would be lost"):
        go_on(oldest)
    assert contents(cut_off) == before
    go_on(oldest, tmp_path / "copy")
    assert results(tmp_path / "copy") == results(whole)
    assert contents(cut_off) == before
    go_on(oldest, overwrite=True)
    assert results(cut_off) == results(whole)


def test_past_a_damaged_checkpoint_it_is_still_the_same_run(whole, cut_off, caplog):
    newest = Checkpoints(cut_off).newest_first()[0]
    damaged = newest.read_bytes()[:-3]
    newest.write_bytes(damaged)
    with caplog.at_level(logging.WARNING):
        go_on(cut_off)
    assert "going on from the one before it" in caplog.text
    assert results(cut_off) == results(whole)
    assert newest.with_name(f"{newest.name}.damaged").read_bytes() == damaged
    names = [path.name for path in Checkpoints(whole).newest_first()]
    assert [path.name for path in Checkpoints(cut_off).newest_first()] == names


@pytest.mark.parametrize("lost", ["short", "gone"])
def test_lost_events_do_not_lose_the_run(whole, cut_off, caplog, lost):
    events = cut_off / "events.jsonl"
    kept = events.read_bytes()[:300]
    events.unlink() if lost == "gone" else events.write_bytes(kept)
    with caplog.at_level(logging.WARNING):
        go_on(cut_off)
    assert "is not as long as it was at the checkpoint; it begins anew" in caplog.text
    recorded, model, summary = results(cut_off)
    assert (model, summary) == results(whole)[1:]
    assert results(whole)[0].endswith(recorded.splitlines(keepends=True)[-1])
    assert recorded.startswith(b'{"kind":"run"')
    if lost == "short":
        assert (cut_off / "events.jsonl.damaged").read_bytes() == kept


@pytest.mark.parametrize("name", ["model.safetensors", "summary.json"])
def test_a_folder_where_a_file_has_to_be_is_refused(whole, tmp_path, name):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    (run / name).unlink()
    (run / name).mkdir()
    with pytest.raises(InputError, match=f"{name} is a folder, where a run keeps a file of its own"):
        go_on(run, samples=1200)


def test_without_room_for_the_model_the_run_can_go_on_when_there_is_some(tmp_path):
    config = Config(task="digits", fleet="2,1", samples=1000, checkpoint_every=300, eval_every=500)
    execute(config, tmp_path)
    earlier = (tmp_path / "model.safetensors").read_bytes()
    with largest_file(8_000):
        result = go_on(tmp_path, samples=2000)
    assert "lacks the model (" in str(result.error)
    assert str(result.error).endswith("; make room, and go on")  # the model that is there is an earlier one
    assert (tmp_path / "model.safetensors").read_bytes() == earlier
    hint = result.how_to_go_on()
    assert hint is not None
    assert hint.endswith(f"with: ownpace train --resume {tmp_path}")
    assert go_on(tmp_path).error is None
    assert (tmp_path / "model.safetensors").read_bytes() != earlier


def test_a_run_that_replaces_another_does_not_keep_its_checkpoints(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    execute(CONFIG.override(checkpoint_every=500, seed=5), tmp_path / "run", overwrite=True)
    found = Checkpoints(tmp_path / "run").newest_first()
    assert [samples_of(path) // 500 for path in found] == [1]


def test_python_says_how_to_go_on(tmp_path):
    with pytest.raises(InputError, match="checkpoint_every is 5, but there is no folder to write to"):
        train(task="quadratic", checkpoint_every=5)
    fleet = tmp_path / "fleet.toml"
    fleet.write_text("""
        [[machine]]
        samples_per_s = 1000
        count = 2
        [[fault]]
        worker = "worker-1"
        at_s = 0.3
        kind = "kill"
    """)
    settings: dict[str, Any] = {"task": "quadratic", "samples": 1000, "fleet": str(fleet), "on_failure": "stop"}
    with pytest.raises(OwnpaceError) as died:
        train(**settings, checkpoint_every=200, out=tmp_path / "run")
    assert died.value.code == "machine-died"
    newest = samples_of(Checkpoints(tmp_path / "run").newest_first()[0])
    assert died.value.__notes__ == [f"go on from sample {newest} with: ownpace train --resume {tmp_path / 'run'}"]
    with pytest.raises(OwnpaceError) as died:
        train(**settings, out=tmp_path / "none")
    assert not hasattr(died.value, "__notes__")
    result = train(resume=tmp_path / "run", fleet="1,1,1", samples=1200)
    assert result.summary.reason == "finished"
    assert result.summary.samples >= 1200
