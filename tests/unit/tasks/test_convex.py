"""Convex tasks: LIBSVM files and the parabola."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("1 99999999999999999999:1\n-1 1:1\n", "cannot be read as LIBSVM data"),
        ("1 1000000000000000000:1\n-1 1:1\n", "LIBSVM data|as a dense matrix that is over 8 GiB"),
        ("1 1:nan\n-1 1:1\n", "holds numbers that are not finite"),
        ("1 1:inf\n-1 1:1\n", "holds numbers that are not finite"),
        ("nan 1:1\n-1 1:1\n", "holds numbers that are not finite|has . classes"),
        ("1 1:1e300\n-1 1:1\n", "too large; every feature must fit 32 bits"),
        ("", "has 0 classes|cannot be read"),
        ("1 1:1\n1 1:2\n", "has 1 classes"),
    ],
)
def test_absurd_files_are_one_line(tmp_path, content, message):
    (tmp_path / "f").write_text(content)
    with pytest.raises(InputError, match=message) as caught:
        Svmlight(path=str(tmp_path / "f")).train_samples()
    assert "\n" not in str(caught.value)


def test_the_labels_of_both_files_must_be_the_same(tmp_path):
    (tmp_path / "train").write_text("1 1:1\n-1 1:2\n")
    (tmp_path / "test").write_text("5 1:1\n7 1:2\n")
    with pytest.raises(InputError, match=r"has the labels 5.0, 7.0, but those to train on have -1.0, 1.0"):
        Svmlight(path=str(tmp_path / "train"), test_path=str(tmp_path / "test")).train_samples()
    (tmp_path / "test").write_text("1 1:1\n")  # one of the two is enough
    test = Svmlight(path=str(tmp_path / "train"), test_path=str(tmp_path / "test")).test_samples()
    assert test.pick(torch.tensor([0]))[1].tolist() == [1.0]


@settings(max_examples=60)
@given(st.data())
def test_damaged_files_are_samples_or_bad_input(tmp_path_factory, data):
    content = bytearray(b"1 1:0.5 2:1\n-1 1:2 3:1e-3\n1 2:-1\n")
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content)))
        content[place : place + data.draw(st.integers(0, 4))] = data.draw(
            st.binary(max_size=4) | st.sampled_from([b"nan", b"-1", b":", b"1e400", b"9" * 15, b"#", b" "])
        )
    path = tmp_path_factory.mktemp("svm") / "f"
    path.write_bytes(bytes(content))
    with contextlib.suppress(InputError):
        inputs, _ = Svmlight(path=str(path)).train_samples().pick(torch.tensor([0]))
        assert inputs.isfinite().all()


def test_too_many_samples_are_refused_before_they_are_made():
    with pytest.raises(InputError, match="dimensions is 1000000000000, together over 8 GiB"):
        Quadratic(dimensions=10**12)
