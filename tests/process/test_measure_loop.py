"""Measuring a script's own loop, which leaves no trace; alone, and under torchrun."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.process.started import free_port
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import ownpace
from ownpace.core.contract.errors import InputError


class Script:
    """A model that keeps statistics and draws, an optimizer with a state, and data that is shuffled."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        inputs, targets = torch.randn(256, 10), torch.randint(2, (256,))
        self.order = torch.Generator().manual_seed(3)
        self.loader = DataLoader(TensorDataset(inputs, targets), batch_size=16, shuffle=True, generator=self.order)
        self.model = nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32), nn.Dropout(0.1), nn.Linear(32, 2))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 10)
        self.loss(self.model, (inputs, targets)).backward()
        self.optimizer.step()

    @staticmethod
    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        # Draws, as what changes images does.
        noise = random.random() + np.random.rand()
        return functional.cross_entropy(model(batch[0]), batch[1]) * (1 + 1e-3 * noise)

    def everything(self) -> list[object]:
        """All that must be the same afterwards, in bytes and numbers."""
        held = [*self.model.state_dict().values(), *(p.grad for p in self.model.parameters())]
        held += [value for state in self.optimizer.state.values() for value in state.values()]
        held += [torch.get_rng_state(), self.order.get_state()]
        tensors: list[object] = [value.numpy(force=True).tobytes() for value in held if value is not None]
        return [
            *tensors,
            [parameter.data_ptr() for parameter in self.model.parameters()],
            [hash(parameter) for parameter in self.model.parameters()],
            sorted(vars(self.optimizer)),
            [sorted(vars(module)) for module in self.model.modules()],
            [len(module._forward_hooks) for module in self.model.modules()],
            [{k: v for k, v in group.items() if k != "params"} for group in self.optimizer.param_groups],
            [len(parameter._backward_hooks or ()) for parameter in self.model.parameters()],
            random.getstate(),
            str(np.random.get_state()),
        ]


def measured() -> ownpace.Measured:
    script = Script()
    before = script.everything()
    found = ownpace.measure_loop(script.model, script.optimizer, script.loss, script.loader, seconds=0.5)
    assert script.everything() == before
    return found


@pytest.mark.timeout(240)
def test_a_loop_alone_is_measured_and_nothing_is_left_of_it() -> None:
    found = measured()
    (worker,) = found.findings.workers
    assert worker.s_per_update > 0
    assert worker.load_s_per_sample > 0
    assert worker.micro_batches >= 12
    assert found.setting.batch_size == 16
    script = Script()
    for data, words in ((script.loader.dataset, "no batch_size"), (iter([1]), "iterator")):
        with pytest.raises(InputError, match=words):
            ownpace.measure_loop(
                script.model, script.optimizer, script.loss, data, batch_size=16 if words == "iterator" else None
            )


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_so_it_is_under_torchrun_on_every_rank() -> None:
    command = ["torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port()), "-m", __name__]
    root = Path(__file__).parents[2]
    ran = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, cwd=root, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("2 workers, sums of ") == 2


if __name__ == "__main__":
    here = measured()
    print(f"{len(here.findings.workers)} workers, sums of {here.findings.links.sum_s > 0}")
