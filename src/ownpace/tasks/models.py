"""The models that tasks offer. Each builder takes the shape of one input (channels, height, width) and the classes."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

ImageShape = tuple[int, int, int]
Builder = Callable[[ImageShape, int], nn.Module]


def logistic(shape: ImageShape, classes: int) -> nn.Module:
    """Multinomial logistic regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


def mlp(shape: ImageShape, classes: int) -> nn.Module:
    """One hidden layer: as wide as a small image has pixels, at most 128."""
    hidden = min(128, math.prod(shape))
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), hidden), nn.ReLU(), nn.Linear(hidden, classes))


def lenet(shape: ImageShape, classes: int) -> nn.Module:
    """LeNet-5 with ReLU and max-pooling; padded, so that it takes images from 8×8 up."""
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * (height // 4) * (width // 4), 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, classes),
    )


def cnn(shape: ImageShape, classes: int) -> nn.Module:
    """Three convolutions with BatchNorm, and a mean over the image."""

    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]

    layers = [*block(shape[0], 16), *block(16, 32), *block(32, 64)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut around them (He et al., 2016)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        y = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def _resnet(channels: int, classes: int, widths: list[int], blocks: int) -> nn.Module:
    layers: list[nn.Module] = [
        nn.Conv2d(channels, widths[0], 3, 1, 1, bias=False),
        nn.BatchNorm2d(widths[0]),
        nn.ReLU(),
    ]
    inputs = widths[0]
    for stage, width in enumerate(widths):
        for block in range(blocks):
            layers.append(BasicBlock(inputs, width, 2 if stage > 0 and block == 0 else 1))
            inputs = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def resnet18(shape: ImageShape, classes: int) -> nn.Module:
    """ResNet-18 with the stem for small images: 3×3, no stride, no pooling. 11.2 M parameters."""
    return _resnet(shape[0], classes, [64, 128, 256, 512], 2)


def resnet20(shape: ImageShape, classes: int) -> nn.Module:
    """ResNet-20, the small one of the CIFAR section of the ResNet paper. 0.27 M parameters."""
    return _resnet(shape[0], classes, [16, 32, 64], 3)


IMAGE_MODELS: dict[str, Builder] = {
    "logistic": logistic,
    "mlp": mlp,
    "lenet": lenet,
    "cnn": cnn,
    "resnet20": resnet20,
    "resnet18": resnet18,
}


class Point(nn.Module):
    """A point; its output is the difference from each input."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.at = nn.Parameter(start.clone())

    def forward(self, x: Tensor) -> Tensor:
        """The difference between the point and each sample."""
        return self.at - x


class Margin(nn.Module):
    """A linear function of the features, with a bias, started at zero: the convex models' one output."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(features))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """The margin of each sample."""
        return x @ self.weight + self.bias
