"""Image classification: digits, MNIST, Fashion-MNIST, CIFAR-10."""

from __future__ import annotations

import math
import struct
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from ownpace.core.contract.errors import InputError, unknown
from ownpace.core.learning.task import Samples, Task, TensorSamples
from ownpace.tasks.files import DataFiles, locate, read_file
from ownpace.tasks.models import IMAGE_MODELS, ImageShape


@dataclass(frozen=True, eq=False)
class ByteImages:
    """Images kept as bytes, a quarter of the memory, and normalised when they are picked."""

    images: Tensor
    targets: Tensor
    mean: Tensor
    scale: Tensor

    def __len__(self) -> int:
        return len(self.images)

    def pick(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        indices = indices.to(self.images.device)
        # On the device, in place: bytes are copied there once, and only a batch of them becomes floats.
        images = self.images.index_select(0, indices).float().sub_(self.mean).mul_(self.scale)
        if images.device.type == "cuda":  # the order in which its convolutions are fastest
            images = images.contiguous(memory_format=torch.channels_last)
        return images, self.targets.index_select(0, indices)

    def to(self, device: torch.device) -> ByteImages:
        return ByteImages(*(part.to(device) for part in (self.images, self.targets, self.mean, self.scale)))


@dataclass(frozen=True)
class ImageTask(Task):
    """Images of one shape in ten classes, and a choice of models for them."""

    model_name: str
    shape: ClassVar[ImageShape]

    def __post_init__(self) -> None:
        if self.model_name not in self.models:
            raise unknown(f"model for {type(self).__name__.lower()}", self.model_name, self.models)

    def model(self) -> nn.Module:
        return IMAGE_MODELS[self.model_name](self.shape, 10)

    def train_samples(self) -> Samples:
        return self._samples[0]

    def test_samples(self) -> Samples:
        return self._samples[1]

    @cached_property
    def _samples(self) -> tuple[Samples, Samples]:
        return self._read()

    @abstractmethod
    def _read(self) -> tuple[Samples, Samples]:
        """Training and test samples."""


@dataclass(frozen=True)
class Digits(ImageTask):
    """1,797 handwritten digits of 8×8 pixels; nothing to download"""

    model_name: str = "mlp"
    models: ClassVar = ("mlp", "logistic", "lenet")
    shape: ClassVar = (1, 8, 8)
    num_test: ClassVar = 360

    def _read(self) -> tuple[Samples, Samples]:
        try:
            from sklearn.datasets import load_digits
        except ImportError:
            raise InputError("digits come with scikit-learn; install it: pip install 'ownpace[data]'") from None
        data = load_digits()
        images = torch.tensor(data.images, dtype=torch.float32)[:, None] / 16
        targets = torch.tensor(data.target, dtype=torch.int64)
        # Seed 0, whatever the run's: runs with different seeds are tested on the same digits.
        order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(0))
        test, train = order[: self.num_test], order[self.num_test :]
        return TensorSamples(images[train], targets[train]), TensorSamples(images[test], targets[test])


@dataclass(frozen=True)
class IdxTask(ImageTask):
    """28×28 greyscale images in the four files of LeCun's format."""

    source: ClassVar[DataFiles]
    mean: ClassVar[float]
    std: ClassVar[float]
    models: ClassVar = ("mlp", "logistic", "lenet", "cnn")
    shape: ClassVar = (1, 28, 28)

    def _read(self) -> tuple[Samples, Samples]:
        folder = locate(self.source)
        mean, scale = torch.tensor(self.mean * 255), torch.tensor(1 / (self.std * 255))
        parts = []
        for prefix in ("train", "t10k"):
            path = folder / f"{prefix}-images-idx3-ubyte.gz"
            images = read_idx(path)
            if images.shape[1:] != self.shape[1:] or not len(images):
                raise InputError(f"{path} holds an array of {tuple(images.shape)}; it must be images of 28 by 28")
            labels_path = folder / f"{prefix}-labels-idx1-ubyte.gz"
            targets = read_idx(labels_path)
            if targets.shape != images.shape[:1]:
                raise InputError(
                    f"{labels_path} holds an array of {tuple(targets.shape)} for {len(images)} images; fetch both again"
                )
            _check_labels(targets, labels_path)
            parts.append(ByteImages(images[:, None], targets.long(), mean, scale))
        return parts[0], parts[1]


def read_idx(path: Path) -> Tensor:
    """The array of bytes in an IDX file.

    Raises:
        InputError: It is not one.
    """
    content = read_file(path)
    # At most three dimensions: nothing that is read here has more.
    if len(content) < 4 or content[:3] != b"\0\0\x08" or content[3] > 3 or len(content) < 4 + 4 * content[3]:
        raise InputError(f"{path} is not an IDX file of bytes; fetch it again")
    shape = struct.unpack_from(f">{content[3]}I", content, 4)
    data = np.frombuffer(content, np.uint8, offset=4 + 4 * content[3])
    if data.size != math.prod(shape):  # exact, where a product of numpy's would overflow
        raise InputError(f"{path} holds {data.size} bytes where its header says {shape}; fetch it again")
    return torch.from_numpy(data.reshape(shape).copy())


@dataclass(frozen=True)
class Mnist(IdxTask):
    """70,000 handwritten digits of 28×28 pixels"""

    model_name: str = "mlp"
    mean: ClassVar = 0.1307
    std: ClassVar = 0.3081
    source: ClassVar = DataFiles(
        "mnist",
        {
            "train-images-idx3-ubyte.gz": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "train-labels-idx1-ubyte.gz": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "t10k-images-idx3-ubyte.gz": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "t10k-labels-idx1-ubyte.gz": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        },
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "CC BY-SA 3.0",
    )


@dataclass(frozen=True)
class FashionMnist(IdxTask):
    """70,000 greyscale images of clothes, 28×28 pixels"""

    model_name: str = "mlp"
    mean: ClassVar = 0.2860
    std: ClassVar = 0.3530
    source: ClassVar = DataFiles(
        "fashion-mnist",
        {
            "train-images-idx3-ubyte.gz": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "train-labels-idx1-ubyte.gz": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "t10k-images-idx3-ubyte.gz": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "t10k-labels-idx1-ubyte.gz": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        },
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "MIT",
    )


@dataclass(frozen=True)
class Cifar10(ImageTask):
    """60,000 colour images of 32×32 pixels in ten classes"""

    model_name: str = "cnn"
    models: ClassVar = ("cnn", "lenet", "resnet20", "resnet18", "mlp", "logistic")
    shape: ClassVar = (3, 32, 32)
    source: ClassVar = DataFiles(
        "cifar10/cifar-10-batches-bin",
        {
            "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        },
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "no licence stated",
    )

    def _read(self) -> tuple[Samples, Samples]:
        folder = locate(self.source)
        records = [self._records(folder / name) for name in self.source.files]
        # Of the training pixels of each channel, in bytes, as usual for CIFAR-10.
        mean = torch.tensor([125.3, 123.0, 113.9]).view(3, 1, 1)
        scale = 1 / torch.tensor([63.0, 62.1, 66.7]).view(3, 1, 1)
        train, test = torch.cat(records[:5]), records[5]
        split = [(part[:, 1:].reshape(-1, *self.shape), part[:, 0].long()) for part in (train, test)]
        return ByteImages(*split[0], mean, scale), ByteImages(*split[1], mean, scale)

    def _records(self, path: Path) -> Tensor:
        data = np.frombuffer(read_file(path), np.uint8)
        # One byte of label, then 32×32 pixels in three planes.
        if data.size % 3073 or not data.size:
            raise InputError(
                f"{path} holds {data.size} bytes, which is not a multiple of a record's 3073; fetch it again"
            )
        records = torch.from_numpy(data.reshape(-1, 3073).copy())
        _check_labels(records[:, 0], path)
        return records


def _check_labels(labels: Tensor, path: Path) -> None:
    if int(labels.max()) > 9:
        raise InputError(f"{path} has the label {int(labels.max())}; labels are 0 to 9: fetch it again")
