"""SGD in one kernel, which a CPU has too: beside torch's own."""

from __future__ import annotations

import pytest
import torch

from ownpace.core.learning import fused_sgd


@pytest.mark.parametrize(
    ("momentum", "nesterov", "decay"), [(0.0, False, 0.0), (0.9, False, 5e-4), (0.9, True, 5e-4), (0.9, True, 0.0)]
)
def test_a_fused_step_is_torchs(momentum: float, nesterov: bool, decay: float) -> None:
    draws = torch.Generator().manual_seed(0)
    start = torch.randn(101, generator=draws)
    plain = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.SGD([plain], lr=0.1, momentum=momentum, nesterov=nesterov, weight_decay=decay)
    values, buffer = start.clone(), None
    for number in range(3):
        total = torch.randn(101, generator=draws)
        before = total.clone()
        scale = torch.tensor(0.25) if number else 0.25
        buffer = fused_sgd.step(optimizer, values, buffer, total, scale, 0.5)
        assert torch.equal(total, before)
        plain.grad = total / 4
        optimizer.param_groups[0]["lr"] = 0.05
        optimizer.step()
        optimizer.param_groups[0]["lr"] = 0.1
        torch.testing.assert_close(values, plain.detach())
    assert (buffer is None) == (momentum == 0)
    assert not torch.equal(values, start)
