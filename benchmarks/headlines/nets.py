"""The convolutional nets: their data, which is read once per process, their recipes, and graphs of their gradients."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import nn

from claims.at_best import Goal
from ownpace import Config
from ownpace.core.learning.dataset_samples import Data
from ownpace.core.learning.task import Score
from ownpace.engines.learning import RealLearning
from ownpace.tasks.images import Cifar10

NAMES = {
    "mlp": "MNIST, MLP",
    "lenet": "CIFAR-10, LeNet",
    "resnet20": "CIFAR-10, ResNet-20",
    "resnet18": "CIFAR-10, ResNet-18",
}
RESNETS = ("resnet18", "resnet20")
GOALS: Mapping[str, Goal] = {
    "mlp": Goal(0.96),
    "lenet": Goal(0.55, behind=0.03),
    # A ResNet's accuracy at a constant rate goes up and down; and its runs are long.
    **dict.fromkeys(RESNETS, Goal(0.6, hopeless=3.0, behind=0.08)),
}
NBYTES = {"mlp": 4 * 101_770, "lenet": 4 * 136_886, "resnet20": 4 * 272_474, "resnet18": 4 * 11_173_962}
BATCHES = {"mlp": 32, "lenet": 32, "resnet20": 64, "resnet18": 64}
MICRO_BATCH = 32
"""Of those that sum whenever they can, on ResNets: smaller ones would keep a GPU waiting."""


@dataclass(frozen=True)
class FastScored(Cifar10):
    """Evaluated in the number format of training: on a GPU a full evaluation in float32 takes as long as many steps."""

    def score(self, model: nn.Module, samples: Data, chunk: int = 2000) -> Score:
        device = next(model.parameters()).device.type
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            return super().score(model, samples, chunk)


@cache
def task(net: str) -> Cifar10:
    """Its images, with those changes that the recipe wants."""
    if net in RESNETS:
        return FastScored(net, crop=4, flip=True, label_smoothing=0.1)
    return Cifar10(net)


def recipe(base: Config, net: str, momentum: float) -> Config:
    """How this net is trained on CIFAR-10."""
    config = replace(base, task=task(net), model=None)
    if net not in RESNETS:
        return config
    return replace(
        config,
        precision="bfloat16",
        batch_size=BATCHES[net],
        weight_decay=5e-4,
        clip_norm=2.0,
        nesterov=momentum > 0,
        warmup_samples=10_000,
        eval_every=10_000,
    )


@cache
def replays(net: str, device: str, precision: str) -> bool:
    """Whether gradients of this net can be recorded on this GPU, and then are what they are without."""
    if not device.startswith("cuda"):
        return False
    found, took = [], []
    try:
        for graphs in (False, True):
            torch.manual_seed(0)
            autocast = torch.bfloat16 if precision == "bfloat16" else None
            learning = RealLearning(task(net), torch.device(device), autocast, graphs=graphs)
            buffers = learning.new_buffers()
            for start in range(30):
                if start == 10:
                    began_s = time.perf_counter()
                parts, _ = learning.gradient(learning.initial, buffers, torch.arange(64 * start, 64 * start + 64))
            took.append((time.perf_counter() - began_s) / 20)
            found.append(learning.layout.join(parts))
        error = float((found[0] - found[1]).norm() / found[0].norm())
        times = f"{1e3 * took[0]:.2f} ms a gradient, {1e3 * took[1]:.2f} replayed"
        print(f"{net}: {times}, {error:.1e} apart", file=sys.stderr)
    except RuntimeError as problem:
        print(f"{net}: no graphs: {problem}", file=sys.stderr)
        return False
    return error < 0.05


def changes(net: str, label: str, device: str, precision: str) -> dict[str, Any]:
    """What is different for one who takes part."""
    small = {"micro_batch": MICRO_BATCH} if net in RESNETS and label in ("abs", "pace") else {}
    return {"cuda_graphs": replays(net, device, precision), **small}
