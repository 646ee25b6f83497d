"""Fits with Lightning's Trainer: `torchrun … -m tests.integrations.lightning_runs FOLDER`.

Every rank writes what it saw into a file of the folder.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, Timer
from lightning.pytorch.plugins import MixedPrecision
from tests.integrations.ranks import one_of, rests
from tests.process.small_net import RANK, Numbers, flat, make_net, mean_loss
from torch.utils.data import DataLoader, IterableDataset, Subset
from torchmetrics import MeanMetric

import ownpace
from ownpace.integrations.lightning import OwnpaceStrategy

SIZE = 61
SAMPLES = Numbers(SIZE)
FEW = 12
"""Samples of two batches: of four ranks, two get none."""


class Net(L.LightningModule):
    """Notes the samples of every batch."""

    def __init__(self, *, one_cycle: bool = False, slow_s: float = 0.0, stop_at: int | None = None) -> None:
        super().__init__()
        self.net = make_net(seed=RANK)
        self.mean = MeanMetric()
        self.one_cycle = one_cycle
        self.slow_s = slow_s
        self.stop_at = stop_at
        self.epochs: list[list[list[int]]] = []
        self.rates: list[float] = []
        self.validated = 0

    def on_train_epoch_start(self) -> None:
        self.epochs.append([])

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y, indices = batch
        self.epochs[-1].append(indices.tolist())
        self.rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])
        time.sleep(self.slow_s)
        if sum(map(len, self.epochs)) == self.stop_at:
            self.trainer.should_stop = True
        loss = mean_loss(self.net, x, y)
        self.log("loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        self.mean(indices.float().mean(), len(indices))
        self.log("mean", self.mean, on_step=False, on_epoch=True)
        self.log("plain", indices.float().mean(), on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y, indices = batch
        self.validated += len(indices)
        self.log("val_loss", mean_loss(self.net, x, y), sync_dist=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        if not self.one_cycle:
            return optimizer
        steps = self.trainer.estimated_stepping_batches
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=int(steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class ByHand(Net):
    """Steps the optimizer itself."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        return loss


class TwoByHand(Net):
    """Two optimizers, each of one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        both = self.optimizers()
        for optimizer in both:
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in both:
            optimizer.step()
        return loss

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9) for layer in (self.net[0], self.net[3])]


class Stream(IterableDataset[Any]):
    """The samples, one after the other."""

    def __iter__(self) -> Any:
        return (SAMPLES[index] for index in range(SIZE))


def fit(
    algorithm: str, folder: Path, net: Net | None = None, ckpt_path: Any = None, data: Any = SAMPLES, **trainer: Any
) -> dict[str, Any]:
    """What this rank saw of a fit of two epochs, or as many as are given."""
    net = net or Net()
    saved = ModelCheckpoint(folder, save_last=True, enable_version_counter=False)
    strategy = OwnpaceStrategy(algorithm)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    callbacks = [saved, *trainer.pop("callbacks", [])]
    its = L.Trainer(strategy=strategy, callbacks=callbacks, **quiet, **{"max_epochs": 2, **trainer})
    loader = DataLoader(data, 8, shuffle=data is SAMPLES)
    its.fit(net, loader, DataLoader(SAMPLES, 16), ckpt_path=ckpt_path)
    assert strategy.summary is not None
    return {
        "epochs": net.epochs,
        "rates": [*net.rates, its.optimizers[0].param_groups[0]["lr"]],
        "weights": flat(net.net).tolist(),
        "steps": its.global_step,
        "validated": net.validated,
        "metrics": {name: float(value) for name, value in its.callback_metrics.items() if not name.endswith("_step")},
        "checkpoint": saved.best_model_path,
        "replicas_identical": strategy.summary.replicas_identical,
        "updates": strategy.summary.updates,
        "at_most_one_storage": max(p.untyped_storage().nbytes() // p.nbytes for p in net.parameters()),
    }


def refusals() -> dict[str, str]:
    """What is said of Trainers that cannot work."""
    asked: dict[str, dict[str, Any]] = {
        "val_check_interval": {"val_check_interval": 0.5},
        "sync_batchnorm": {"sync_batchnorm": True},
        "clip by value": {"gradient_clip_val": 1.0, "gradient_clip_algorithm": "value"},
        "devices": {"devices": 7},
    }
    said = {}
    for name, arguments in asked.items():
        try:
            fit("sync", Path("nowhere"), **arguments)
        except ownpace.InputError as error:
            said[name] = str(error)
    return said


def runs(folder: Path) -> dict[str, Any]:
    """All fits of one start."""
    stopping: Any = [EarlyStopping("val_loss", stopping_threshold=100.0), Timer("00:01:00:00")]
    within = ModelCheckpoint(folder / "within", "{step}", every_n_train_steps=2, save_top_k=-1)
    scaling: Any = [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=64.0))]
    sync = fit("sync", folder / "sync")
    return {
        "sync": sync,
        "resumed": fit("sync", folder / "resumed", ckpt_path=sync["checkpoint"], max_epochs=3),
        "within": fit("sync", folder / "kept", callbacks=[within], max_epochs=1),
        "scaled": fit("sync", folder / "scaled", plugins=scaling, max_epochs=1),
        "two by hand": fit("sync", folder / "two", TwoByHand()),
        "stream": fit("sync", folder / "stream", data=Stream(), max_epochs=1),
        "clipped": fit("sync", folder / "clipped", gradient_clip_val=0.5),
        "accumulated": fit("sync", folder / "accumulated", accumulate_grad_batches=2),
        "by hand": fit("sync", folder / "by hand", ByHand()),
        "pace": fit("pace", folder / "pace", Net(one_cycle=True, slow_s=0.01 if RANK else 0.0), max_epochs=3),
        "bfloat16": fit("pace", folder / "bfloat16", precision="bf16-mixed", max_epochs=1),
        "async": fit("async", folder / "async", max_epochs=1),
        "local": fit("local", folder / "local", max_epochs=1),
        "max_steps": fit("sync", folder / "max_steps", max_steps=3, max_epochs=-1),
        "early": fit("balanced", folder / "early", callbacks=stopping, max_epochs=9),
        "left": fit("pace", folder / "left", Net(stop_at=None if RANK else 2), max_epochs=9),
        "few": fit("stride", folder / "few", data=Subset(SAMPLES, range(FEW)), max_epochs=3),
        "limited": fit("sync", folder / "limited", limit_train_batches=2, max_epochs=1),
        "refusals": refusals(),
        **within_epochs(folder),
    }


def within_epochs(folder: Path) -> dict[str, Any]:
    """Fits that go on from a checkpoint within an epoch: the first of an earlier fit, or its last."""
    seen = {}
    for name in rests(int(os.environ["WORLD_SIZE"])):
        algorithm = name.split()[0]
        if name == algorithm:
            often = ModelCheckpoint(folder / algorithm, "often-{step}", every_n_train_steps=1, save_top_k=-1)
            seen[f"{name} whole"] = fit(algorithm, folder / "whole", callbacks=[often], max_epochs=1)
        net = Net()
        net.epochs.append([])  # Lightning does not begin it again
        path = one_of(folder / algorithm, "often-step=*.ckpt", last="end" in name)
        seen[f"{name} rest"] = fit(algorithm, folder / "rest", net, ckpt_path=path, max_epochs=2)
    return seen


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    out = Path(sys.argv[1])
    (out / f"{RANK}.json").write_text(json.dumps(runs(out)))
