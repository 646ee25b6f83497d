"""Loops with Fabric, and with Accelerate: `torchrun … -m tests.integrations.fabric_runs FOLDER`.

Every rank writes what it saw into a file of the folder.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from tests.process.small_net import RANK, Numbers, flat, make_net, mean_loss, sgd
from torch.utils.data import DataLoader

import ownpace
from ownpace.integrations.fabric import OwnpaceFabricStrategy

SIZE = 61
SAMPLES = Numbers(SIZE)


def loop(algorithm: str, path: Path, *, forget: str = "", **options: Any) -> dict[str, Any]:
    """Two epochs, each with a validation, and a checkpoint."""
    strategy = OwnpaceFabricStrategy(algorithm, **options)
    fabric = Fabric(accelerator="cpu", strategy=strategy)
    fabric.launch()
    net = make_net(seed=RANK)
    model, optimizer = fabric.setup(net, sgd(net))
    train, validation = fabric.setup_dataloaders(DataLoader(SAMPLES, 8, shuffle=True), DataLoader(SAMPLES, 16))
    epochs: list[list[list[int]]] = []
    validated = 0
    losses = []
    for _ in range(2):
        model.train()
        epochs.append([])
        for x, y, indices in train:
            epochs[-1].append(indices.tolist())
            optimizer.zero_grad()
            fabric.backward(mean_loss(model, x, y))
            if forget == "not to gather":
                fabric.all_reduce(x)
            optimizer.step()
        if forget != "eval":
            model.eval()
        for x, y, indices in validation:
            with torch.no_grad():
                losses.append(float(mean_loss(model, x, y)))
            validated += len(indices)
    fabric.save(path, {"model": model, "optimizer": optimizer})
    assert strategy.fleet is not None
    updates = strategy.fleet.updates
    strategy.finish()
    assert strategy.summary is not None
    return {
        "epochs": epochs,
        "validated": validated,
        "loss": float(fabric.all_reduce(torch.tensor(losses[-1]))),
        "updates": updates,
        "weights": flat(net).tolist(),
        "replicas_identical": strategy.summary.replicas_identical,
    }


def refusals(folder: Path) -> dict[str, str]:
    """What is said where a loop cannot work, alone or with others."""
    said = {}
    for mistake in ("eval", "not to gather"):
        try:
            loop("sync", folder / "never.ckpt", forget=mistake)
        except ownpace.InputError as error:
            said[mistake] = str(error)
    return said


def accelerated(algorithm: str) -> dict[str, Any]:
    """A script that uses Accelerate itself."""
    from accelerate import Accelerator

    from ownpace.integrations.hf import leave_to_fleet

    leave_to_fleet()
    accelerator = Accelerator(cpu=True)
    net = make_net(seed=RANK)
    epochs: list[list[list[int]]] = [[]]
    with ownpace.join(algorithm) as fleet:
        model, optimizer = accelerator.prepare(*fleet.wrap(net, sgd(net)))
        for x, y, indices in fleet.batches(DataLoader(SAMPLES, 8, shuffle=True)):
            epochs[-1].append(indices.tolist())
            optimizer.zero_grad()
            accelerator.backward(mean_loss(model, x, y))
            optimizer.step()
        accelerator.wait_for_everyone()
    assert fleet.summary is not None
    return {
        "epochs": epochs,
        "weights": flat(net).tolist(),
        "is_main": accelerator.is_main_process,
        "replicas_identical": fleet.summary.replicas_identical,
    }


def runs(folder: Path) -> dict[str, Any]:
    """All loops of one start."""
    return {
        "sync": loop("sync", folder / "sync.ckpt"),
        "clipped": loop("sync", folder / "clipped.ckpt", clip_norm=0.5),
        "pace": loop("pace", folder / "pace.ckpt"),
        "accelerated": accelerated("sync"),
        "accelerated pace": accelerated("pace"),
        "refusals": refusals(folder),
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    out = Path(sys.argv[1])
    (out / f"{RANK}.json").write_text(json.dumps(runs(out)))
