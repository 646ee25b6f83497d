"""The optimizer that counts samples finds whole numbers in a gradient, whatever it was scaled by."""

from __future__ import annotations

import pytest
import torch

from ownpace.testing.counted import counting


@pytest.mark.parametrize("counts", [[0, 1, 1], [0, 2, 3], [101, 150, 0], [720, 719, 725], [998, 997, 1]])
def test_samples_are_counted_however_often_they_were_learnt_from(counts: list[int]) -> None:
    parameter = torch.nn.Parameter(torch.zeros(3))
    optimizer = counting().build([parameter])
    parameter.grad = torch.tensor(counts) / sum(counts) * 0.37
    optimizer.step()
    assert parameter.tolist() == counts
