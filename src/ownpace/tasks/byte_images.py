"""Images in memory: kept as bytes, turned into numbers a batch at a time, and cropped and mirrored for training."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ownpace.core.learning.task import TensorSamples


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
        return self.normalised(self.images.index_select(0, indices)), self.targets.index_select(0, indices)

    def normalised(self, images: Tensor) -> Tensor:
        """Numbers for a model, of what is not needed any more."""
        numbers = images.float().sub_(self.mean).mul_(self.scale)
        if numbers.device.type == "cuda":  # the order in which its convolutions are fastest
            numbers = numbers.contiguous(memory_format=torch.channels_last)
        return numbers

    def to(self, device: torch.device) -> ByteImages:
        return ByteImages(*(part.to(device) for part in (self.images, self.targets, self.mean, self.scale)))


@dataclass(frozen=True, eq=False)
class CroppedImages:
    """Images that are moved a little and mirrored for training, a whole batch at a time on the device."""

    images: ByteImages
    crop: int
    """Black pixels around each, out of which one of its size is cropped."""
    flip: bool

    @classmethod
    def of(cls, samples: ByteImages | TensorSamples, crop: int, *, flip: bool) -> CroppedImages:
        """These images, so changed."""
        if isinstance(samples, TensorSamples):  # numbers already, of which 0 is black
            samples = ByteImages(samples.inputs, samples.targets, torch.tensor(0.0), torch.tensor(1.0))
        return cls(samples, crop, flip)

    def __len__(self) -> int:
        return len(self.images)

    def pick(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self.images.pick(indices)

    def pick_augmented(self, indices: Tensor, randoms: Tensor) -> tuple[Tensor, Tensor]:
        places = 2 * self.crop + 1
        rest = randoms // places
        # One transfer for all four, since each of them would cost as much.
        drawn = torch.stack([indices.cpu(), randoms % places, rest % places, rest // places % 2])
        indices, down, right, mirrored = drawn.to(self.images.images.device)
        images = self.images.images.index_select(0, indices)
        # Before they are normalised, so that black is 0.
        images = _cropped(images, self.crop, down, right) if self.crop else images
        if self.flip:
            # Both ways and then a choice: choosing which to turn would wait for the device to say how many.
            images = torch.where(mirrored.bool().view(-1, 1, 1, 1), images.flip(3), images)
        return self.images.normalised(images), self.images.targets.index_select(0, indices)

    def to(self, device: torch.device) -> CroppedImages:
        return CroppedImages(self.images.to(device), self.crop, self.flip)


def _cropped(images: Tensor, border: int, down: Tensor, right: Tensor) -> Tensor:
    """Of each image with a black border, the part that begins so far down and to the right."""
    count, _, height, width = images.shape
    padded = functional.pad(images, (border,) * 4)
    # Every part there is, as a view: (image, channel, down, right, height, width). One of each image is copied.
    parts = padded.unfold(2, height, 1).unfold(3, width, 1)
    return parts[torch.arange(count, device=images.device), :, down, right]
