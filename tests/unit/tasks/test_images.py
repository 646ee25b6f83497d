"""Images: digits, IDX files, CIFAR records; on small data made here."""

from __future__ import annotations

import contextlib
import gzip
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from torch import Tensor, nn

from ownpace.core.contract.errors import InputError
from ownpace.core.learning.task import TensorSamples
from ownpace.tasks import Cifar10, Cifar100, Digits, Mnist
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


def test_digits_are_those_of_scikit_learn_in_value_and_order():
    data = load_digits()
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    for samples, which in ((Digits().test_samples(), order[:360]), (Digits().train_samples(), order[360:])):
        inputs, targets = samples.pick(torch.arange(len(samples)))
        assert inputs.dtype == torch.float32
        assert torch.equal(inputs[:, 0], torch.tensor(data.images, dtype=torch.float32)[which] / 16)
        assert torch.equal(targets, torch.tensor(data.target, dtype=torch.int64)[which])


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


class FewCifar10(Cifar10):
    """Two images in each file."""

    num_records = (2,) * 6


class FewCifar100(Cifar100):
    num_records = (3, 2)


def test_cifar_records(monkeypatch, tmp_path):
    folder = tmp_path / "cifar10" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    record = np.arange(3073, dtype=np.uint64).astype(np.uint8)
    for number, name in enumerate(Cifar10.source.files):
        record[0] = number
        (folder / name).write_bytes(record.tobytes() * 2)
    monkeypatch.setenv("OWNPACE_DATA", str(tmp_path))
    task = FewCifar10()
    assert (len(task.train_samples()), len(task.test_samples())) == (10, 2)
    inputs, targets = task.test_samples().pick(torch.tensor([1]))
    assert inputs.shape == (1, 3, 32, 32)
    assert targets.tolist() == [5]
    for content, message in [
        (b"short", r"test_batch.bin holds 5 bytes, but 2 images with labels are 6,146; fetch it again"),
        (b"", "holds 0 bytes"),
        (bytes(3073), "holds 3,073 bytes"),  # cut off after a whole image
        (b"\x4d" * 3073 * 2, "has the label 77; labels are 0 to 9"),
    ]:
        (folder / "test_batch.bin").write_bytes(content)
        with pytest.raises(InputError, match=message):
            FewCifar10().test_samples()
    with pytest.raises(InputError, match="10,000 images with labels are 30,730,000"):
        Cifar10().train_samples()


def test_cifar100_has_two_labels_and_learns_the_second(monkeypatch, tmp_path):
    folder = tmp_path / "cifar100" / "cifar-100-binary"
    folder.mkdir(parents=True)
    record = np.arange(3074, dtype=np.uint64).astype(np.uint8)
    for number, name in enumerate(Cifar100.source.files):
        record[:2] = 19, 70 + number
        (folder / name).write_bytes(record.tobytes() * (3 - number))
    monkeypatch.setenv("OWNPACE_DATA", str(tmp_path))
    task = FewCifar100(model_name="resnet20")
    assert (len(task.train_samples()), len(task.test_samples())) == (3, 2)
    inputs, targets = task.test_samples().pick(torch.tensor([1]))
    assert targets.tolist() == [71]
    # The first pixel is behind both labels.
    torch.testing.assert_close(inputs[0, 0, 0, 0].item(), (2 - 129.3) / 68.2, rtol=1e-5, atol=1e-5)
    assert task.model()(inputs).shape == (1, 100)
    (folder / "test.bin").write_bytes((b"\x00\x64" + bytes(3072)) * 2)
    with pytest.raises(InputError, match="has the label 100; labels are 0 to 99"):
        FewCifar100().test_samples()
    with pytest.raises(InputError, match="50,000 images with labels are 153,700,000"):
        Cifar100().train_samples()


def test_labels_are_smoothed_in_training_alone():
    plain, smooth = Digits("logistic"), Digits("logistic", label_smoothing=0.2)
    model = plain.model()
    inputs, targets = plain.train_samples().pick(torch.arange(20))
    logs = model(inputs).log_softmax(1)
    expected = -(0.8 * logs.gather(1, targets[:, None])[:, 0] + 0.2 * logs.mean(1)).mean()
    torch.testing.assert_close(smooth.objective(model, inputs, targets), expected)
    assert smooth.score(model, smooth.test_samples()) == plain.score(model, plain.test_samples())


def test_a_derived_task_trains_with_its_own_loss_and_penalty():
    class Derived(Digits):
        def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return outputs.square().mean()

        def penalty(self, model: nn.Module) -> Tensor:
            return torch.tensor(3.0)

    task = Derived("logistic")
    model = task.model()
    inputs, targets = task.train_samples().pick(torch.arange(20))
    torch.testing.assert_close(task.objective(model, inputs, targets), model(inputs).square().mean() + 3)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"crop": -1}, "crop is -1; it must be a finite number of at least 0"),
        ({"crop": 9}, "crop is 9; it must be at most 8"),
        ({"label_smoothing": 1.0}, "label_smoothing is 1.0; it must be at least 0 and below 1"),
    ],
)
def test_recipes_that_mean_nothing_are_refused(parameters, message):
    with pytest.raises(InputError, match=message):
        Digits(**parameters)


def test_a_data_folder_that_is_none(monkeypatch, tmp_path):
    monkeypatch.setenv("OWNPACE_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="which is not a folder"):
        Mnist().train_samples()


def raw_idx(dims: int, shape: tuple[int, ...], size: int, value: int = 1) -> bytes:
    return gzip.compress(struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, dims, *shape) + bytes([value]) * size)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "train-images-idx3",
            raw_idx(3, (5, 10, 10), 500),
            r"an array of \(5, 10, 10\); it must be images of 28 by 28",
        ),
        ("train-images-idx3", raw_idx(2, (5, 784), 3920), r"an array of \(5, 784\)"),
        ("train-images-idx3", raw_idx(3, (5, 28, 28), 3920), r"an array of \(30,\) for 5 images"),
        ("train-images-idx3", raw_idx(255, (1,) * 255, 1), "not an IDX file"),
        ("train-images-idx3", raw_idx(3, (2**32 - 1,) * 3, 1), "where its header says"),
        ("train-images-idx3", b"not packed", "cannot be read"),
        ("train-labels-idx1", raw_idx(1, (30,), 30, 10), "has the label 10; labels are 0 to 9"),
        ("train-labels-idx1", raw_idx(1, (29,), 29), r"an array of \(29,\) for 30 images"),
        ("train-labels-idx1", raw_idx(0, (), 1), "holds an array of"),
        ("t10k-images-idx3", raw_idx(3, (0, 28, 28), 0), "images of 28 by 28"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",  # what gzip makes holds the time
)
def test_files_that_are_not_mnist_are_one_line(monkeypatch, tmp_path, name, content, message):
    write_mnist(tmp_path)
    (tmp_path / "mnist" / f"{name}-ubyte.gz").write_bytes(content)
    monkeypatch.setenv("OWNPACE_DATA", str(tmp_path))
    with pytest.raises(InputError, match=message) as caught:
        Mnist().train_samples()
    assert "\n" not in str(caught.value)


def test_what_unpacks_to_too_much_is_not_unpacked(monkeypatch, tmp_path):
    monkeypatch.setattr("ownpace.tasks.files.MOST_BYTES", 1 << 20)
    (tmp_path / "a.gz").write_bytes(gzip.compress(bytes(2 << 20)))
    with pytest.raises(InputError, match="unpacks to more than 1,048,576 bytes"):
        read_idx(tmp_path / "a.gz")


@settings(max_examples=60)
@given(st.data())
def test_damaged_idx_files_are_an_array_or_bad_input(tmp_path_factory, data):
    content = bytearray(gzip.decompress(idx(np.arange(24, dtype=np.uint8).reshape(2, 3, 4))))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content)))
        content[place : place + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    packed = bytearray(gzip.compress(bytes(content)))
    if data.draw(st.booleans()):
        packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.mktemp("idx") / "a.gz"
    path.write_bytes(bytes(packed))
    with contextlib.suppress(InputError):
        assert read_idx(path).dtype == torch.uint8
