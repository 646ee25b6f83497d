"""The gradient noise scale, against what it is in closed form."""

from __future__ import annotations

import math

import pytest
import torch

from ownpace.planning.noise import measured_noise, noise_scale
from ownpace.tasks import Quadratic


def test_both_parts_are_estimated_without_bias():
    generator = torch.Generator().manual_seed(0)
    mean, deviation, each, num = torch.tensor([1.0, -0.5]), torch.tensor([2.0, 1.0]), 8, 16
    variances, squares = [], []
    for _ in range(2000):
        noise = torch.randn(num, 2, generator=generator) * deviation / math.sqrt(each)
        found = noise_scale(mean + noise, each)
        variances.append(found.variance)
        squares.append(found.squared)
    assert sum(variances) / 2000 == pytest.approx(5.0, rel=0.03)  # 2² + 1²
    assert sum(squares) / 2000 == pytest.approx(1.25, rel=0.05)  # 1² + 0.5²


def test_a_gradient_that_is_only_noise_has_no_scale():
    assert noise_scale(torch.tensor([[1.0], [-1.0]]), 4).samples == math.inf


def test_on_a_parabola_it_is_the_variance_of_the_data_over_the_distance_from_their_mean():
    task = Quadratic()
    inputs, _ = task.train_samples().pick(torch.arange(len(task.train_samples())))
    model = task.model()
    with torch.no_grad():
        next(model.parameters()).copy_(inputs.mean(0) + 3.0)
    found = measured_noise(task, model.state_dict(), 32)
    # The gradient of a sample is curvature · (where it stands − the sample), in each direction.
    at = next(model.parameters()).detach().requires_grad_()
    rows = torch.stack([torch.autograd.grad(task.loss(at - x[None], x[None]), at)[0] for x in inputs])
    expected = float(rows.var(0).sum() / rows.mean(0).square().sum())
    assert found.samples == pytest.approx(expected, rel=0.25)
