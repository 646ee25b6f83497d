"""Image classification on images of one small shape: digits, MNIST, Fashion-MNIST, CIFAR-10, CIFAR-100."""

from __future__ import annotations

import math
import struct
import zlib
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ownpace.core.contract.errors import InputError, unknown
from ownpace.core.learning.defaults import Defaults
from ownpace.core.learning.task import Samples, Task, TensorSamples
from ownpace.core.settings import at_most, not_negative
from ownpace.tasks.byte_images import ByteImages, CroppedImages
from ownpace.tasks.files import DataFiles, locate, read_file
from ownpace.tasks.models import IMAGE_MODELS, ImageShape


@dataclass(frozen=True)
class ImageTask(Task):
    """Images of one shape in some classes, and a choice of models for them."""

    model_name: str
    crop: int = 0
    """Crop each training image at random out of one with this many black pixels around it; 4 is usual for CIFAR."""
    flip: bool = False
    """Mirror every second training image, at random."""
    label_smoothing: float = 0.0
    """The share of the target that goes to all classes alike, in training; evaluation takes the targets as they are."""
    shape: ClassVar[ImageShape]
    num_classes: ClassVar[int] = 10

    def __post_init__(self) -> None:
        if self.model_name not in self.models:
            raise unknown(f"model for {type(self).__name__.lower()}", self.model_name, self.models)
        not_negative(crop=self.crop)
        at_most(self.shape[1], crop=self.crop)
        check_smoothing(self.label_smoothing)

    def model(self) -> nn.Module:
        return IMAGE_MODELS[self.model_name](self.shape, self.num_classes)

    def training_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return smoothed(self.loss(outputs, targets), outputs, self.label_smoothing)

    def train_samples(self) -> Samples:
        return self._samples[0]

    def test_samples(self) -> Samples:
        return self._samples[1]

    @cached_property
    def _samples(self) -> tuple[Samples, Samples]:
        train, test = self._read()
        return (CroppedImages.of(train, self.crop, flip=self.flip) if self.crop or self.flip else train), test

    @abstractmethod
    def _read(self) -> tuple[ByteImages | TensorSamples, Samples]:
        """Training and test samples."""


def smoothed(loss: Tensor, outputs: Tensor, label_smoothing: float) -> Tensor:
    """A mean loss, as if a share of each target went to all classes alike."""
    # Of the task's own loss, not torch's with its argument: a task may be derived, and have another.
    if not label_smoothing:
        return loss
    return (1 - label_smoothing) * loss - label_smoothing * functional.log_softmax(outputs, 1).mean()


def check_smoothing(label_smoothing: float) -> None:
    """Raise if targets cannot be smoothed so."""
    if not 0 <= label_smoothing < 1:
        raise InputError(f"label_smoothing is {label_smoothing}; it must be at least 0 and below 1, as in 0.1")


@dataclass(frozen=True)
class Digits(ImageTask):
    """1,797 handwritten digits of 8×8 pixels; nothing to download"""

    model_name: str = "mlp"
    models: ClassVar = ("mlp", "logistic", "lenet")
    shape: ClassVar = (1, 8, 8)
    # Without momentum: gradients that come late learn with it at small rates only.
    defaults: ClassVar = Defaults(lr=0.2, epochs=40, target=0.95)
    num_images: ClassVar = 1797
    num_test: ClassVar = 360

    def _read(self) -> tuple[TensorSamples, Samples]:
        content = zlib.decompress(files("ownpace.tasks").joinpath("data", "digits.zlib").read_bytes())
        # All images, then all labels, a byte for each pixel (0 to 16) and each label.
        values = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        images, targets = values[: -self.num_images].view(-1, *self.shape) / 16.0, values[-self.num_images :].long()
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

    def _read(self) -> tuple[ByteImages, Samples]:
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
            _check_labels(targets, self.num_classes, labels_path)
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
    defaults: ClassVar = Defaults(lr=0.1, epochs=8, target=0.96)
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
    defaults: ClassVar = Defaults(lr=0.1, epochs=10, target=0.85)
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
class CifarTask(ImageTask):
    """Colour images of 32×32 pixels, in records of one byte or two of labels and three planes of pixels."""

    source: ClassVar[DataFiles]
    num_labels: ClassVar[int]
    """Bytes of labels in front of the pixels; the last is the class."""
    num_records: ClassVar[tuple[int, ...]]
    """Of each file. The files do not say it themselves: one that was cut off may end with a whole record."""
    mean: ClassVar[tuple[float, float, float]]
    std: ClassVar[tuple[float, float, float]]
    models: ClassVar = ("cnn", "lenet", "resnet20", "resnet18", "mlp", "logistic")
    shape: ClassVar = (3, 32, 32)

    def _read(self) -> tuple[ByteImages, Samples]:
        folder = locate(self.source)
        # The last file holds the test images.
        counts = zip(self.source.files, self.num_records, strict=True)
        *train, test = (self._records(folder / name, count) for name, count in counts)
        mean, std = torch.tensor(self.mean).view(3, 1, 1), torch.tensor(self.std).view(3, 1, 1)
        first, second = (self._images(part, mean, 1 / std) for part in (torch.cat(train), test))
        return first, second

    def _images(self, records: Tensor, mean: Tensor, scale: Tensor) -> ByteImages:
        images = records[:, self.num_labels :].reshape(-1, *self.shape)
        return ByteImages(images, records[:, self.num_labels - 1].long(), mean, scale)

    def _records(self, path: Path, count: int) -> Tensor:
        data = np.frombuffer(read_file(path), np.uint8)
        size = self.num_labels + math.prod(self.shape)
        if data.size != count * size:
            raise InputError(
                f"{path} holds {data.size:,} bytes, but {count:,} images with labels are {count * size:,}; "
                "fetch it again"
            )
        records = torch.from_numpy(data.reshape(count, size).copy())
        _check_labels(records[:, self.num_labels - 1], self.num_classes, path)
        return records


@dataclass(frozen=True)
class Cifar10(CifarTask):
    """60,000 colour images of 32×32 pixels in ten classes"""

    model_name: str = "cnn"
    defaults: ClassVar = Defaults(lr=0.1, epochs=10, target=0.55)
    num_labels: ClassVar = 1
    num_records: ClassVar = (10_000,) * 6
    # Of the training pixels of each channel, in bytes, as usual for CIFAR-10.
    mean: ClassVar = (125.3, 123.0, 113.9)
    std: ClassVar = (63.0, 62.1, 66.7)
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


@dataclass(frozen=True)
class Cifar100(CifarTask):
    """60,000 colour images of 32×32 pixels in a hundred classes"""

    model_name: str = "cnn"
    num_classes: ClassVar = 100
    num_labels: ClassVar = 2
    num_records: ClassVar = (50_000, 10_000)
    # Of the training pixels of each channel, in bytes, as usual for CIFAR-100.
    mean: ClassVar = (129.3, 124.1, 112.4)
    std: ClassVar = (68.2, 65.4, 70.4)
    source: ClassVar = DataFiles(
        "cifar100/cifar-100-binary",
        {"train.bin": "", "test.bin": ""},
        "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
        "no licence stated",
        archive_md5="03b5dce01913d631647c71ecec9e9cb8",
    )


def _check_labels(labels: Tensor, num_classes: int, path: Path) -> None:
    if int(labels.max()) >= num_classes:
        raise InputError(f"{path} has the label {int(labels.max())}; labels are 0 to {num_classes - 1}: fetch it again")
