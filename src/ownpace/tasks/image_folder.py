"""Images of any size in folders named after their classes, as ImageNet comes: train/CLASS/*.jpg and val/CLASS/*.jpg."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from ownpace.core.contract.errors import InputError, listed, unknown
from ownpace.core.learning.task import Data, Samples, Score, Task
from ownpace.core.settings import at_most, positive
from ownpace.tasks.image_loaders import ImageLoaders
from ownpace.tasks.images import check_smoothing, smoothed
from ownpace.tasks.resnets import RESNETS

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
MOST_LOADERS = 256
# Of ImageNet's training pixels, in bytes, as usual.
MEAN = (123.675, 116.28, 103.53)
STD = (58.395, 57.12, 57.375)
_MOST_AHEAD = 1 << 13
"""Images that are decoded and not picked yet: of a generation that was abandoned, they never will be."""


@dataclass(frozen=True, eq=False)
class Listing:
    """The images of one folder, class by class."""

    root: Path
    classes: Sequence[str]
    names: Sequence[str]
    targets: Tensor

    def path(self, index: int) -> str:
        """Of one image."""
        return str(self.root / self.classes[int(self.targets[index])] / self.names[index])


def list_images(root: Path, classes: Sequence[str] | None = None) -> Listing:
    """The images in a folder's folders, in the order of their names.

    Args:
        root: The folder whose folders are classes.
        classes: Those there may be (None: any).

    Raises:
        InputError: There is no such folder, a class has no images, or a class is not one of those there may be.
    """
    try:
        with os.scandir(root) as entries:
            found = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise InputError(
            f"{root} cannot be read ({error.strerror}); path names a folder with train/CLASS/*.jpg and val/CLASS/*.jpg"
        ) from None
    if not found:
        raise InputError(f"{root} has no folders; it needs one for each class, with the images of that class in it")
    known = found if classes is None else list(classes)
    numbers = {name: number for number, name in enumerate(known)}
    if strange := [name for name in found if name not in numbers]:
        raise InputError(
            f"{root} has the class {strange[0]}, of which there is nothing to train on; known: {listed(known, 8)}"
        )
    names: list[str] = []
    targets: list[int] = []
    for name in found:
        images = _images(root / name)
        names += images
        targets += [numbers[name]] * len(images)
    return Listing(root, known, names, torch.tensor(targets))


def _images(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            # Hidden files are none: macOS puts one beside each image on foreign disks, of the same name but for a "._".
            names = [e.name for e in entries if e.name.lower().endswith(SUFFIXES) and not e.name.startswith(".")]
    except OSError as error:
        raise InputError(f"{folder} cannot be read: {error.strerror}") from None
    if not names:
        raise InputError(f"{folder} has no images ({', '.join(SUFFIXES)}); put some there, or remove it")
    return sorted(names)


class FolderImages:
    """Images that are read from their files when they are picked, or before, by processes of their own."""

    def __init__(self, listing: Listing, size: int, loaders: int, *, flip: bool, device: torch.device | None = None):
        self._listing = listing
        self._size = size
        self._num_loaders = loaders
        self._flip = flip
        self._device = device or torch.device("cpu")
        self._ahead: dict[tuple[int, int], Future[bytes]] = {}

    def __len__(self) -> int:
        return len(self._listing.names)

    def __reduce__(self) -> tuple[object, ...]:
        # Without its processes, which belong to this one.
        return _made_of, (self._listing, self._size, self._num_loaders, self._flip, self._device)

    @cached_property
    def _loaders(self) -> ImageLoaders:
        return ImageLoaders(self._num_loaders)

    def start(self, indices: Tensor, randoms: Tensor) -> None:
        """Begin to decode these, which will be picked by `pick_augmented`."""
        for key in zip(indices.tolist(), randoms.tolist(), strict=True):
            self._ahead[key] = self._start(*key)
        while len(self._ahead) > max(_MOST_AHEAD, 2 * len(indices)):
            self._ahead.pop(next(iter(self._ahead))).cancel()

    def pick_augmented(self, indices: Tensor, randoms: Tensor) -> tuple[Tensor, Tensor]:
        keys = zip(indices.tolist(), randoms.tolist(), strict=True)
        decoding = [self._ahead.pop(key) if key in self._ahead else self._start(*key) for key in keys]
        return self._batch(indices, decoding)

    def pick(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self._batch(indices, [self._start(index, None) for index in indices.tolist()])

    def to(self, device: torch.device) -> FolderImages:
        return FolderImages(self._listing, self._size, self._num_loaders, flip=self._flip, device=device)

    def _start(self, index: int, number: int | None) -> Future[bytes]:
        return self._loaders.start(self._listing.path(index), self._size, number, flip=self._flip)

    def _batch(self, indices: Tensor, decoding: Sequence[Future[bytes]]) -> tuple[Tensor, Tensor]:
        pixels = np.empty((len(decoding), self._size, self._size, 3), np.uint8)
        for place, future in zip(pixels, decoding, strict=True):
            place[:] = np.frombuffer(future.result(), np.uint8).reshape(place.shape)
        # As bytes to the device, a quarter of the way; there they are in the order that its convolutions prefer.
        images = torch.from_numpy(pixels).to(self._device).permute(0, 3, 1, 2).float()
        mean, std = (torch.tensor(each, device=self._device).view(3, 1, 1) for each in (MEAN, STD))
        images = images.sub_(mean).div_(std)
        images = images if self._device.type == "cuda" else images.contiguous()
        return images, self._listing.targets[indices.cpu()].to(self._device)


def _made_of(listing: Listing, size: int, loaders: int, flip: bool, device: torch.device) -> FolderImages:
    return FolderImages(listing, size, loaders, flip=flip, device=device)


@dataclass(frozen=True)
class Images(Task):
    """Any images in folders: path/train/CLASS/*.jpg and path/val/CLASS/*.jpg, as ImageNet comes"""

    path: str
    """The folder that has train and val in it."""
    model_name: str = "resnet50"
    size: int = 224
    """Pixels of the height and width that images are cropped and resized to."""
    flip: bool = True
    """Mirror every second training image, at random."""
    label_smoothing: float = 0.0
    """The share of the target that goes to all classes alike, in training; evaluation takes the targets as they are."""
    loaders: int = 4
    """Processes that decode images, of each worker."""
    models: ClassVar = tuple(RESNETS)

    def __post_init__(self) -> None:
        if self.model_name not in self.models:
            raise unknown("model for images", self.model_name, self.models)
        positive(size=self.size, loaders=self.loaders)
        at_most(MOST_LOADERS, loaders=self.loaders)
        at_most(4096, size=self.size)
        check_smoothing(self.label_smoothing)

    def model(self) -> nn.Module:
        return RESNETS[self.model_name](len(self._listings[0].classes))

    def train_samples(self) -> Samples:
        return self._samples[0]

    def test_samples(self) -> Samples:
        return self._samples[1]

    def training_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return smoothed(self.loss(outputs, targets), outputs, self.label_smoothing)

    def score(self, model: nn.Module, samples: Data, chunk: int = 100) -> Score:
        # Chunks of a hundred: these images are large.
        return super().score(model, samples, chunk)

    @cached_property
    def _samples(self) -> tuple[FolderImages, FolderImages]:
        _check_pillow()
        train, val = (FolderImages(each, self.size, self.loaders, flip=self.flip) for each in self._listings)
        return train, val

    @cached_property
    def _listings(self) -> tuple[Listing, Listing]:
        root = Path(self.path).expanduser()
        train = list_images(root / "train")
        if len(train.classes) < 2:
            raise InputError(f"{train.root} has the class {train.classes[0]} alone; there must be two or more")
        return train, list_images(root / "val", train.classes)


def _check_pillow() -> None:
    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        raise InputError("images are decoded by Pillow; install it: pip install 'ownpace[images]'") from None


__all__ = ["FolderImages", "Images", "Listing", "list_images"]
