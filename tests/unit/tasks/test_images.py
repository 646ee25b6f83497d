"""Images: digits, IDX files, CIFAR records; on small data made here."""

from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest
import torch

from ownpace.core.contract.errors import InputError
from ownpace.core.learning.task import TensorSamples
from ownpace.tasks import Cifar10, Digits, Mnist
from ownpace.tasks.images import read_idx


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


def test_digits_are_split_without_overlap():
    task = Digits()
    train, test = task.train_samples(), task.test_samples()
    assert isinstance(train, TensorSamples)
    assert isinstance(test, TensorSamples)
    assert (len(train), len(test)) == (1437, 360)
    rows = {row.numpy().tobytes() for row in train.inputs}
    assert len(rows & {row.numpy().tobytes() for row in test.inputs}) < 5  # the set holds a few twins


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
    with pytest.raises(InputError, match="not a multiple of a record"):
        Cifar10().test_samples()


def test_a_data_folder_that_is_none(monkeypatch, tmp_path):
    monkeypatch.setenv("OWNPACE_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="which is not a folder"):
        Mnist().train_samples()
