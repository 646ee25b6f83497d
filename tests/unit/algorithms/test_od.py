"""The local step of OD-SGD, number by number."""

from __future__ import annotations

import math

import pytest
import torch

from ownpace.algorithms.od import LocalStep, OdSgd
from ownpace.core.contract.values import Gradient, Parameters, Shard

WHOLE = Shard(0, 0, 1)


def at(value: float, version: int = 0) -> Parameters:
    return Parameters(torch.tensor([value], dtype=torch.float64), version, WHOLE)


def gradient(mean: float, samples: int = 4) -> Gradient:
    return Gradient(torch.tensor([mean * samples], dtype=torch.float64), samples, (0,))


def test_the_first_compensation_term_is_zero_though_the_warm_up_was_remembered() -> None:
    """Momentum knows how W moved in the warm-up; compensation is for local steps, and there was none before."""
    settings = OdSgd(local="compensated", compensation=0.5, local_momentum=0.9)
    local = LocalStep(settings, num_workers=2)
    local.remember(at(1.0))
    first = local.step(at(3.0), gradient(0.2), lr=0.1)
    assert first.values.item() == pytest.approx(3.0 - 0.1 * 0.2 + 0.9 * (3.0 - 1.0))
    second = local.step(at(4.0), gradient(0.2), lr=0.1)
    u = 0.2 + 0.5 * 0.2**2 * (4.0 - 3.0)
    assert second.values.item() == pytest.approx(4.0 - 0.1 * u + 0.9 * (4.0 - 3.0))


def test_the_constant_of_the_adaptive_strength() -> None:
    """1e-7 is added to MS at every step: gradients are chosen so small that hardly anything else is in it."""
    local = LocalStep(OdSgd(local="adaptive", compensation=2.0, decay=0.95), num_workers=1)
    local.step(at(1.0), gradient(1e-5), lr=1.0)
    second = local.step(at(3.0), gradient(1e-5), lr=1.0)
    square = 1e-5**2
    mean_square = 0.05 * square + 1e-7
    mean_square = 0.95 * mean_square + 0.05 * square + 1e-7
    u = 1e-5 + 2.0 / math.sqrt(mean_square) * square * (3.0 - 1.0)
    assert 3.0 - second.values.item() == pytest.approx(u, rel=1e-9)


def test_without_samples_there_is_no_local_step() -> None:
    local = LocalStep(OdSgd(local="compensated"), num_workers=2)
    nothing = Gradient(torch.zeros(1, dtype=torch.float64), 0, (0,))
    assert local.step(at(3.0, version=7), nothing, lr=0.1).values.item() == 3.0
