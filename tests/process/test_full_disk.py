"""A disk that is full while processes train on it: records end, the model is saved."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tests.process.started import PATIENCE_S, Started, launcher

from ownpace.core.contract.event_file import read_events
from ownpace.core.contract.events import End, Omitted

pytestmark = pytest.mark.timeout(3 * PATIENCE_S)


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    disk = tmp_path / "out"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root can make a small disk")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.slow
def test_a_full_disk_costs_records_and_neither_the_run_nor_the_model(start, small_disk):
    run: Started = start(launcher("--epochs", "40", "--log-files", fleet="x2"))
    assert run.ends() == 6
    lines = [line for line in run.stderr.splitlines() if line]
    assert len(lines) == 2
    assert "events cannot be written any more (No space left on device), from" in lines[0]
    assert lines[1] == "ownpace: out lacks a part of the events (No space left on device); the model is whole"
    assert set(load_file(small_disk / "model.safetensors")) == {"1.weight", "1.bias", "3.weight", "3.bias"}
    summary = json.loads((small_disk / "summary.json").read_text())
    assert summary["samples"] >= 40 * 1437
    *_, omitted, end = read_events(small_disk / "events.jsonl")
    assert isinstance(omitted, Omitted)
    assert isinstance(end, End)
    assert end.sums.samples == summary["samples"]


@pytest.mark.slow
def test_a_full_disk_that_has_the_temporary_folder_too_does_not_end_the_run(start, small_disk):
    """At each checkpoint a new generation begins, which counts anew what it takes of the data."""
    (small_disk / "temporary").mkdir()
    command = launcher("--epochs", "40", "--checkpoint-every", "10000", fleet="x2")
    run: Started = start(command, TMPDIR=str(small_disk / "temporary"))
    assert run.ends() == 6, run.stderr
    assert "the model is whole" in run.errors[-1]
    assert json.loads((small_disk / "summary.json").read_text())["samples"] >= 40 * 1437
