"""Scripts of the user's own on processes: without a main guard, from standard input, as in a notebook's cell."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.process.started import PATIENCE_S

SCRIPT = """
from dataclasses import dataclass
import torch
import ownpace
from ownpace.testing.blobs import Blobs

print("begins", flush=True)
SIZE = 16

class Wide(Blobs):
    def model(self):
        return torch.nn.Sequential(torch.nn.Linear(2, SIZE), torch.nn.Tanh(), torch.nn.Linear(SIZE, 2))

@dataclass(frozen=True, kw_only=True)
class Twice(ownpace.Algorithm):
    async def worker(self, me):
        while me.training:
            me.step(await me.all_reduce(await ownpace.accumulate(me, 32)))

made = ownpace.train(
    algorithm=Twice(), task=Wide(), fleet="x2", engine="process", batch_size=16, samples=640,
    optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01), progress=False,
)
print(made.summary.updates, made.summary.reason)
"""


@pytest.mark.timeout(2 * PATIENCE_S)
@pytest.mark.parametrize("way", ["file", pytest.param("stdin", marks=pytest.mark.slow)])
def test_a_script_without_a_guard_runs_once_and_its_classes_reach_the_workers(way, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    command = [sys.executable, "script.py"] if way == "file" else [sys.executable, "-"]
    ran = subprocess.run(
        command, input=None if way == "file" else SCRIPT, cwd=tmp_path, capture_output=True, text=True,
        timeout=PATIENCE_S, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert (ran.stdout.splitlines(), ran.stderr) == (["begins", "10 finished"], "")


@pytest.mark.timeout(2 * PATIENCE_S)
@pytest.mark.slow
def test_what_fails_only_in_the_workers_is_a_line_for_each_and_no_traceback(tmp_path):
    source = "import sys\nif len(sys.argv) > 1: raise RuntimeError('not here')\n"
    (tmp_path / "moody.py").write_text(source + "from ownpace.testing.blobs import Blobs as B\nclass T(B): pass\n")
    code = "import sys, moody, ownpace; sys.argv += ['x']; ownpace.train(task=moody.T(), engine='process', fleet='x2')"
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert "a new process cannot load its part of the run: RuntimeError: not here (moody.py, line 2)" in ran.stderr
    # The caller's own traceback alone.
    assert ran.stderr.count("Traceback") == 1
