"""`ownpace.join("auto")` under torchrun: unequal ranks, a choice that lasts."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tests.process.started import free_port
from torch.nn import functional

import ownpace
from ownpace.testing.blobs import Blobs


def main() -> None:
    """A script: its second rank sleeps eight times as long over a sample."""
    task = Blobs()
    torch.manual_seed(0)
    model = task.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = task.train_samples().pick(torch.arange(400))
    with ownpace.join("auto") as fleet:
        model, optimizer = fleet.wrap(model, optimizer)
        for _ in range(2):
            for x, y in fleet.batches(torch.utils.data.TensorDataset(inputs, targets), batch_size=8, epochs=2):
                time.sleep(len(x) * (0.004 if fleet.rank else 0.0005))
                functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
        print(f"loss {fleet.evaluate(lambda m: functional.cross_entropy(m(inputs), targets)):.6f}", fleet.samples)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_ranks_choose_once_and_together_and_learn() -> None:
    command = ["torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port()), "-m", __name__]
    root = Path(__file__).parents[2]
    ran = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, cwd=root, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count("ownpace: auto: ") == 1
    assert "ownpace: auto: sync" not in ran.stderr
    assert " (chosen by auto) on 2 workers: " in ran.stderr  # the last line
    first, second = ran.stdout.splitlines()
    assert first == second
    assert float(first.split()[1]) < 0.3
    assert int(first.split()[2]) == 1600  # every sample once an epoch, whoever was chosen


if __name__ == "__main__":
    main()
