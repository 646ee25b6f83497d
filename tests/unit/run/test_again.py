"""A run that torchrun starts again: its own folder is known, everybody else's refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ownpace
from ownpace.core.contract.errors import DivergenceError, InputError
from ownpace.run.place import STARTED, SUMMARY


@pytest.fixture(autouse=True)
def torchrun(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")  # as it is where nobody gave the job a name
    return monkeypatch


def train(out: Path, **fields: object) -> ownpace.Result:
    settings = {"algorithm": "sync", "task": "quadratic", "fleet": "2,1", "engine": "virtual", "samples": 4000}
    return ownpace.train(**{**settings, "checkpoint_every": 1000, **fields}, out=out)  # type: ignore[arg-type]


def test_a_run_that_was_cut_off_goes_on_where_its_last_checkpoint_was(tmp_path):
    whole = train(tmp_path / "whole").as_dict()
    train(tmp_path / "out")
    (tmp_path / "out" / SUMMARY).unlink()
    (tmp_path / "out" / "model.safetensors").unlink()
    again = train(tmp_path / "out").as_dict()
    same = ("samples", "updates", "loss", "seconds", "reason")
    assert [again[key] for key in same] == [whole[key] for key in same]
    with pytest.raises(InputError, match="has finished"):
        train(tmp_path / "out")


def test_before_its_first_checkpoint_it_begins_anew(tmp_path):
    train(tmp_path, checkpoint_every=0)
    (tmp_path / SUMMARY).unlink()
    assert train(tmp_path, checkpoint_every=0).as_dict()["samples"] >= 4000


@pytest.mark.parametrize("mark", [{"agent": "another", "job": None}, {"agent": None, "job": "none"}, [], None])
def test_whoever_else_comes_is_refused(tmp_path, mark):
    train(tmp_path)
    (tmp_path / STARTED).write_text("no JSON" if mark is None else json.dumps(mark))
    with pytest.raises(InputError, match="already holds a run"):
        train(tmp_path)


def test_a_job_with_a_name_may_come_from_another_agent(tmp_path, torchrun):
    torchrun.setenv("TORCHELASTIC_RUN_ID", "my job")
    train(tmp_path)
    (tmp_path / SUMMARY).unlink()
    (tmp_path / STARTED).write_text(json.dumps({**json.loads((tmp_path / STARTED).read_text()), "agent": "another"}))
    assert train(tmp_path).as_dict()["reason"] == "finished"


def test_without_torchrun_nothing_is_written_and_nothing_goes_on(tmp_path, torchrun):
    torchrun.delenv("TORCHELASTIC_RUN_ID")
    train(tmp_path)
    assert not (tmp_path / STARTED).exists()
    with pytest.raises(InputError, match="already holds a run"):
        train(tmp_path)


def test_what_no_start_can_mend_is_said_again_and_needs_no_room(tmp_path):
    with pytest.raises(DivergenceError) as first:
        train(tmp_path, lr=1000.0)
    size = (tmp_path / STARTED).stat().st_size
    events = (tmp_path / "events.jsonl").read_bytes()
    with pytest.raises(DivergenceError) as second:
        train(tmp_path, lr=1000.0)
    assert str(second.value) == str(first.value)
    assert (tmp_path / "events.jsonl").read_bytes() == events
    train(other := tmp_path / "other")
    assert (other / STARTED).stat().st_size == size
