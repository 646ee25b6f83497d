"""Convex tasks: LIBSVM files and the parabola."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ownpace.core.contract.errors import InputError
from ownpace.tasks import Quadratic, Svmlight


def write_svm(path, rows=50):
    rng = np.random.default_rng(1)
    lines = []
    for _ in range(rows):
        x = rng.normal(size=3)
        label = 1 if x.sum() > 0 else -1
        lines.append(f"{label} " + " ".join(f"{k + 1}:{value:.4f}" for k, value in enumerate(x)))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.mark.parametrize("model", ["logistic", "svm"])
def test_svmlight_gradient_is_that_of_the_objective(tmp_path, model):
    write_svm(tmp_path / "data.txt")
    task = Svmlight(path=str(tmp_path / "data.txt"), model_name=model, l2=0.3)
    assert (len(task.train_samples()), len(task.test_samples())) == (40, 10)
    net = task.model()
    with torch.no_grad():
        net.weight += torch.tensor([0.5, -0.2, 0.1])
    x, y = task.train_samples().pick(torch.arange(40))
    task.objective(net, x, y).backward()
    margins = y * (x @ net.weight + net.bias)
    slope = -torch.sigmoid(-margins) if model == "logistic" else -(margins < 1).float()
    expected = ((slope * y)[:, None] * x).mean(0) + 0.3 * net.weight
    torch.testing.assert_close(net.weight.grad, expected.detach())
    torch.testing.assert_close(net.bias.grad, (slope * y).mean().detach())


def test_svmlight_refuses(tmp_path, monkeypatch):
    monkeypatch.setenv("OWNPACE_DATA", str(tmp_path))
    with pytest.raises(InputError, match=r"there is no file .*nothing or .*libsvm/nothing"):
        Svmlight(path="nothing").train_samples()
    bad = tmp_path / "bad.txt"
    bad.write_text("hello world\n", encoding="utf-8")
    with pytest.raises(InputError, match="cannot be read as LIBSVM data"):
        Svmlight(path=str(bad)).train_samples()
    three = tmp_path / "three.txt"
    three.write_text("1 1:1\n2 1:1\n3 1:1\n", encoding="utf-8")
    with pytest.raises(InputError, match="has 3 classes"):
        Svmlight(path=str(three)).train_samples()


def test_quadratic_has_its_minimum_at_zero():
    task = Quadratic(dimensions=4, noise=2.0)
    x, y = task.train_samples().pick(torch.arange(1000))
    model = task.model()
    model.at.data.zero_()
    task.objective(model, x, y).backward()
    assert model.at.grad.abs().max() < 1e-5
    assert task.score(model, task.test_samples()).accuracy is None
