"""A run that torchrun starts again, on a store in which the dead left everything."""

from __future__ import annotations

import sys

import pytest
from tests.process.started import PATIENCE_S, free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * PATIENCE_S)]
SCRIPT = """
import os, pathlib, signal, torch, ownpace
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(512, 10), torch.randint(2, (512,)))
model = torch.nn.Linear(10, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with ownpace.join("sync", quiet=True) as fleet:
    model, optimizer = fleet.wrap(model, optimizer)
    for number, (x, y) in enumerate(fleet.batches(data, batch_size=16)):
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        if number == 5 and fleet.rank == 1 and not pathlib.Path("killed").exists():
            pathlib.Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
print(f"rank {fleet.rank}: {fleet.samples} samples after {os.environ['TORCHELASTIC_RESTART_COUNT']} restarts")
"""


def test_two_agents_that_count_restarts_differently_meet_again(start, tmp_path):
    """Each agent counts its own restarts: after one has lost its rank, they are one apart."""
    (tmp_path / "script.py").write_text(SCRIPT)
    port = str(free_port())
    where = ["--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "3", "--rdzv-backend", "c10d"]
    where += ["--rdzv-id", "again", "--rdzv-endpoint", f"127.0.0.1:{port}"]
    runs = [start([sys.executable, "-m", "torch.distributed.run", *where, "script.py"]) for _ in range(2)]
    assert [run.ends() for run in runs] == [0, 0], runs[0].stderr + runs[1].stderr
    said = sorted(line for run in runs for line in run.stdout.splitlines())
    assert [line.partition(" after")[0] for line in said] == ["rank 0: 512 samples", "rank 1: 512 samples"]
    assert {line[-10:] for line in said} == {"0 restarts", "1 restarts"}
