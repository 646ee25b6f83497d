"""Tasks and their files, on small data made here."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import struct
import tarfile
import threading
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from ownpace.core.contract.errors import InputError
from ownpace.core.learning.task import TensorSamples
from ownpace.tasks import TASKS, Cifar10, Digits, Mnist, Quadratic, Svmlight, make_task, models_of
from ownpace.tasks.files import DataFiles, locate
from ownpace.tasks.images import read_idx
from ownpace.tasks.models import IMAGE_MODELS


@pytest.fixture(autouse=True)
def no_data(monkeypatch, tmp_path):
    """No test sees the data or the cache of whoever runs it."""
    monkeypatch.delenv("OWNPACE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def served(tmp_path):
    """A folder and the address at which its files can be downloaded."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    thread.join()
    server.server_close()


def idx(array: np.ndarray) -> bytes:
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return gzip.compress(header + array.tobytes())


def write_mnist(root, count=30):
    rng = np.random.default_rng(0)
    folder = root / "mnist"
    folder.mkdir(parents=True)
    for prefix, n in (("train", count), ("t10k", 10)):
        images = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(idx(images))
        labels = np.arange(n, dtype=np.uint8) % 10
        (folder / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(idx(labels))


@pytest.mark.parametrize("name", TASKS)
def test_every_task_offers_models(name):
    assert models_of(name)


def test_digits_are_split_without_overlap():
    task = Digits()
    train, test = task.train_samples(), task.test_samples()
    assert isinstance(train, TensorSamples)
    assert isinstance(test, TensorSamples)
    assert (len(train), len(test)) == (1437, 360)
    rows = {row.numpy().tobytes() for row in train.inputs}
    assert len(rows & {row.numpy().tobytes() for row in test.inputs}) < 5  # the set holds a few twins


@pytest.mark.parametrize("name", IMAGE_MODELS)
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32)])
def test_models_take_their_shapes(name, shape):
    outputs = IMAGE_MODELS[name](shape, 10)(torch.zeros(2, *shape))
    assert outputs.shape == (2, 10)


def test_known_sizes():
    def size(name, shape):
        return sum(p.numel() for p in IMAGE_MODELS[name](shape, 10).parameters())

    assert size("mlp", (1, 28, 28)) == 101_770
    assert size("resnet18", (3, 32, 32)) == 11_173_962
    assert 0.26e6 < size("resnet20", (3, 32, 32)) < 0.28e6


def test_idx_files_are_found_through_the_variable(monkeypatch, tmp_path):
    write_mnist(tmp_path)
    monkeypatch.setenv("OWNPACE_DATA", str(tmp_path))
    task = Mnist()
    inputs, targets = task.train_samples().pick(torch.tensor([3, 7]))
    assert inputs.shape == (2, 1, 28, 28)
    assert targets.tolist() == [3, 7]
    raw = read_idx(tmp_path / "mnist" / "train-images-idx3-ubyte.gz")[3].float() / 255
    torch.testing.assert_close(inputs[0, 0], (raw - 0.1307) / 0.3081, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("content", [b"", b"\0\0\x09\x01", b"\0\0\x08\x01\0\0\0\x05abc"])
def test_files_that_are_not_idx_are_named(tmp_path, content):
    path = tmp_path / "bad.gz"
    path.write_bytes(gzip.compress(content))
    with pytest.raises(InputError, match=r"bad\.gz"):
        read_idx(path)


def test_cifar_records(monkeypatch, tmp_path):
    folder = tmp_path / "cifar10" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    record = np.arange(3073, dtype=np.uint64).astype(np.uint8)
    for number, name in enumerate(Cifar10.source.files):
        record[0] = number
        (folder / name).write_bytes(record.tobytes() * 2)
    monkeypatch.setenv("OWNPACE_DATA", str(tmp_path))
    task = Cifar10()
    assert (len(task.train_samples()), len(task.test_samples())) == (10, 2)
    inputs, targets = task.test_samples().pick(torch.tensor([1]))
    assert inputs.shape == (1, 3, 32, 32)
    assert targets.tolist() == [5]
    (folder / "test_batch.bin").write_bytes(b"short")
    with pytest.raises(InputError, match="no multiple of a record"):
        Cifar10().test_samples()


def source(url: str, content: bytes) -> DataFiles:
    return DataFiles("things", {"a.bin": hashlib.sha256(content).hexdigest()}, url, "MIT")


def test_downloads_are_checked_and_kept(served, caplog):
    folder, url = served
    (folder / "a.bin").write_bytes(b"good")
    found = locate(source(url, b"good"))
    assert (found / "a.bin").read_bytes() == b"good"
    assert "downloading things (MIT)" in caplog.text
    caplog.clear()
    (folder / "a.bin").unlink()
    assert locate(source(url, b"good")) == found
    assert caplog.text == ""


def test_a_damaged_download_leaves_nothing_behind(served, tmp_path):
    folder, url = served
    (folder / "a.bin").write_bytes(b"bad")
    with pytest.raises(InputError, match=r"a\.bin is damaged"):
        locate(source(url, b"good"))
    assert not list((tmp_path / "cache").rglob("a.bin"))


def test_archives_are_unpacked(served):
    folder, url = served
    inner = folder / "a.bin"
    inner.write_bytes(b"good")
    with tarfile.open(folder / "all.tar.gz", "w:gz") as archive:
        archive.add(inner, "some/folder/a.bin")
    packed = replace(source(url, b"good"), url=url + "all.tar.gz")
    assert (locate(packed) / "a.bin").read_bytes() == b"good"


def test_offline_says_where_it_looked_and_what_to_do(served):
    _, url = served  # nothing is served
    with pytest.raises(InputError) as caught:
        locate(source(url, b"good"))
    message = str(caught.value)
    assert "things is not in" in message
    assert "set OWNPACE_DATA" in message
    assert "\n" not in message


def test_a_data_folder_that_is_none(monkeypatch, tmp_path):
    monkeypatch.setenv("OWNPACE_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="which is not a folder"):
        Mnist().train_samples()


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
    ("name", "model", "parameters", "message"),
    [
        ("digts", None, {}, "unknown task 'digts'; did you mean 'digits'"),
        ("digits", "resnet50", {}, "unknown model for digits 'resnet50'"),
        ("digits", None, {"l2": "1"}, "unknown key in the parameters of digits: 'l2'"),
        ("svmlight", None, {}, "lacks path"),
        ("quadratic", None, {"dimensions": "many"}, "it must be a whole number"),
        ("digits", None, {"model_name": "mlp"}, "name the model with --model"),
    ],
)
def test_bad_tasks(name, model, parameters, message):
    with pytest.raises(InputError, match=message):
        make_task(name, model, parameters)
