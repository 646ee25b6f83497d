"""Checkpoints in a run's folder: kept a few deep, one written at a time, and a full disk ends nothing."""

from __future__ import annotations

import logging
import os
import threading

import pytest
import torch

from ownpace.core.contract.errors import InputError
from ownpace.core.learning.state_file import read_state
from ownpace.run.checkpoints import Checkpoints, CheckpointWriter, readable, samples_of


def names(checkpoints: Checkpoints) -> list[int]:
    return [samples_of(path) for path in checkpoints.newest_first()]


@pytest.fixture
def three(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for samples in (100, 200, 300):
        checkpoints.write(samples, {"a": torch.full((3,), samples)}, {"samples": samples}, kept=3)
    return checkpoints


def test_older_ones_go_once_the_new_one_is_whole(three):
    assert names(three) == [300, 200, 100]
    three.write(400, {}, {}, kept=2)
    assert names(three) == [400, 300]
    # Not what is newer, which a run that writes an older one cannot have made.
    three.write(350, {}, {}, kept=1)
    assert names(three) == [400, 350]


def test_a_damaged_one_is_passed_over_and_set_aside(three):
    newest, middle, oldest = three.newest_first()
    newest.write_bytes(newest.read_bytes()[:-1])
    (three.folder / f".{oldest.name}.0123abcd.part").write_bytes(b"cut off")
    (three.folder / "mine.txt").write_text("a file of the user's")
    (first, error), (second, found) = readable(three.newest_first())
    assert (first, second) == (newest, middle)
    assert isinstance(error, InputError)
    assert found.about == {"samples": 200}
    three.prepare(after=middle)
    assert names(three) == [200, 100]
    assert sorted(path.name for path in three.folder.iterdir()) == [
        oldest.name, middle.name, f"{newest.name}.damaged", "mine.txt",
    ]  # fmt: skip


def test_one_is_written_at_a_time_and_the_newest_of_those_that_wait(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    writer = CheckpointWriter(checkpoints, kept=9, in_background=True)
    begun, go_on = threading.Event(), threading.Event()
    fsync = os.fsync

    def slow(file: int) -> None:
        begun.set()
        assert go_on.wait(60)
        fsync(file)

    monkeypatch.setattr(os, "fsync", slow)
    writer.take(1, {"a": torch.ones(2)}, {})
    assert begun.wait(60)
    for samples in (2, 3, 4):  # returns at once, though the disk does not
        writer.take(samples, {"a": torch.ones(2)}, {})
    assert names(checkpoints) == []
    go_on.set()
    writer.close()
    assert names(checkpoints) == [4, 1]
    assert writer.last == checkpoints.newest_first()[0]
    writer.take(5, {}, {})  # a writer that had nothing to do goes on
    writer.close()
    assert names(checkpoints) == [5, 4, 1]


@pytest.mark.parametrize("in_background", [True, False])
def test_what_cannot_be_written_is_a_warning_and_the_one_before_stays(tmp_path, monkeypatch, caplog, in_background):
    writer = CheckpointWriter(Checkpoints(tmp_path), kept=1, in_background=in_background)
    writer.take(1000, {"a": 1}, {})
    writer.close()

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.setattr(os, "fsync", full)
        writer.take(2000, {"a": 2}, {})
        writer.take(3000, {"a": print}, {})
        writer.close()
    assert "at sample 2,000 could not be written: [Errno 28] No space left" in caplog.text or in_background
    assert "a is a builtin_function_or_method, which a checkpoint cannot hold" in caplog.text
    assert "training goes on, and the one at sample 1,000 stays" in caplog.text
    assert names(Checkpoints(tmp_path)) == [1000]
    assert writer.last is not None
    assert read_state(writer.last).state == {"a": 1}
    writer.take(4000, {"a": 4}, {})
    writer.close()
    assert names(Checkpoints(tmp_path)) == [4000]
