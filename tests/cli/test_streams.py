"""Output that nobody reads to its end."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_TRAIN = ("train", "--algorithm", "sync", "--fleet", "2,1", "--samples", "200")


@pytest.mark.parametrize("gone", ["stdout", "stderr"])
def test_a_reader_that_goes_away_costs_no_run_its_model(gone, tmp_path):
    reading, writing = os.pipe()
    os.close(reading)  # as `| head` does, once it has read enough
    out, err = (writing if name == gone else subprocess.DEVNULL for name in ("stdout", "stderr"))
    try:
        command = [sys.executable, "-m", "ownpace", *_TRAIN, "--out", str(tmp_path / "run")]
        ended = subprocess.run(command, stdout=out, stderr=err, timeout=100, check=False)
    finally:
        os.close(writing)
    assert ended.returncode == 0
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_where_the_encoding_lacks_our_characters_they_are_written_otherwise(tmp_path):
    run = str(tmp_path / "run")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "120"}
    command = [sys.executable, "-m", "ownpace", *_TRAIN, "--out", run]
    ended = subprocess.run(command, capture_output=True, env=environment, timeout=100, check=True)
    shown = (ended.stdout + ended.stderr).decode("ascii")
    assert "0.0, <= 0" in shown
    assert "?" not in shown
