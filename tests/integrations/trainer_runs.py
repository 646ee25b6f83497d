"""Training with Transformers' Trainer: `torchrun … -m tests.integrations.trainer_runs FOLDER`.

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

import torch
from tests.integrations.ranks import one_of, rests
from tests.process.small_net import RANK, Numbers, flat, make_net, mean_loss
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import TrainerCallback, TrainingArguments

import ownpace
from ownpace.integrations.hf import OwnpaceTrainer

SIZE = 61
SAMPLES = Numbers(SIZE)


class Named(Dataset[dict[str, Any]]):
    """The samples as a Trainer wants them."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> dict[str, Any]:
        x, y, number = SAMPLES[index]
        return {"x": x, "labels": y, "number": number}


class Net(nn.Module):
    """Notes the samples of every batch."""

    def __init__(self, slow_s: float = 0.0) -> None:
        super().__init__()
        self.net = make_net(seed=RANK)
        self.slow_s = slow_s
        self.epochs: list[list[list[int]]] = []

    def forward(self, x: Tensor, labels: Tensor, number: Tensor) -> dict[str, Tensor]:
        if self.training:
            self.epochs[-1].append(number.tolist())
            time.sleep(self.slow_s)
        return {"loss": mean_loss(self.net, x, labels)}


class Notes(TrainerCallback):
    """Begins a list for every epoch; one rank may stop at its second step."""

    def __init__(self, net: Net, *, stops: bool) -> None:
        self.net = net
        self.stops = stops
        self.steps = 0
        self.evaluated: list[float] = []

    def on_epoch_begin(self, *args: Any, **kwargs: Any) -> None:
        self.net.epochs.append([])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.steps += 1
        if self.stops and self.steps == 2:
            control.should_training_stop = True

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        self.evaluated.append(metrics["eval_loss"])


class TwoModes(torch.optim.SGD):
    """As schedule-free: away from where it trains, the model is used. There and back, numbers are rounded."""

    away = 0

    def eval(self) -> None:
        self._move(+1)

    def train(self) -> None:
        self._move(-1)

    def _move(self, sign: int) -> None:
        if (sign > 0) == bool(self.away):
            return  # it is there
        self.away += sign
        for parameter in (p for group in self.param_groups for p in group["params"]):
            parameter.data.add_(sign * 0.3)


def train(
    algorithm: str,
    folder: Path,
    *,
    slow_s: float = 0.0,
    stops: bool = False,
    resume: bool | str = False,
    scales: bool = False,
    modes: bool = False,
    **arguments: Any,
) -> dict[str, Any]:
    """What this rank saw of two epochs, or as many as are given."""
    net = Net(slow_s)
    notes = Notes(net, stops=stops)
    usual = {"num_train_epochs": 2, "learning_rate": 0.1, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
    usual |= {"per_device_train_batch_size": 8, "eval_strategy": "epoch", "save_strategy": "epoch"}
    quiet = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "remove_unused_columns": False}
    args = TrainingArguments(str(folder), **{**usual, **quiet, **arguments})
    optimizer = (TwoModes if modes else torch.optim.SGD)(net.parameters(), lr=args.learning_rate, momentum=0.9)
    trainer = OwnpaceTrainer(
        net,
        args,
        train_dataset=Named(),
        eval_dataset=Named(),
        optimizers=(optimizer, None),
        callbacks=[notes],
        algorithm=algorithm,
    )
    if scales:  # as fp16=True does it on a GPU; on a CPU, Accelerate ignores that
        trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    trainer.train(resume_from_checkpoint=resume)
    assert trainer.summary is not None
    return {
        "epochs": net.epochs,
        "last_rate": optimizer.param_groups[0]["lr"],
        "weights": flat(net).tolist(),
        "steps": trainer.state.global_step,
        "epoch": trainer.state.epoch,
        "evaluated": notes.evaluated,
        "best": trainer.state.best_model_checkpoint,
        "updates": trainer.summary.updates,
        "replicas_identical": trainer.summary.replicas_identical,
    }


def refusals() -> dict[str, str]:
    """What is said of arguments that cannot work."""
    said = {}
    for name in ("auto_find_batch_size",):
        try:
            train("sync", Path("nowhere"), **{name: True})
        except ownpace.InputError as error:
            said[name] = str(error)
    return said


def runs(folder: Path) -> dict[str, Any]:
    """All trainings of one start."""
    best: dict[str, Any] = {"load_best_model_at_end": True, "save_total_limit": 1}
    steps: dict[str, Any] = {
        "eval_strategy": "steps",
        "save_strategy": "steps",
        "eval_steps": 2,
        "save_steps": 2,
        "logging_steps": 1,
    }
    steps |= {"load_best_model_at_end": True}
    linear: dict[str, Any] = {"lr_scheduler_type": "linear", "num_train_epochs": 3}
    seen = {
        "sync": train("sync", folder / "sync"),
        "clipped": train("sync", folder / "clipped", max_grad_norm=0.5),
        "scaled": train("sync", folder / "scaled", scales=True, max_grad_norm=0.5),
        "accumulated": train("sync", folder / "accumulated", gradient_accumulation_steps=2),
        "pace": train("pace", folder / "pace", slow_s=0.01 if RANK else 0.0, **best, **linear),
        "bfloat16": train("pace", folder / "bfloat16", bf16=True, num_train_epochs=1),
        "async": train("async", folder / "async", num_train_epochs=1),
        "local": train("local", folder / "local", num_train_epochs=1),
        "max_steps": train("sync", folder / "max_steps", max_steps=3),
        "by steps": train("pace", folder / "by steps", **steps),
        "two modes": train("pace", folder / "two modes", modes=True, **steps),
        "two modes, sync": train("sync", folder / "two modes, sync", modes=True),
        "left": train("pace", folder / "left", stops=RANK == 0, num_train_epochs=9),
        "refusals": refusals(),
    }
    seen["resumed"] = train("sync", folder / "sync", resume=True, num_train_epochs=3)
    often: dict[str, Any] = {"save_strategy": "steps", "save_steps": 1, "num_train_epochs": 1}
    for name in rests(int(os.environ["WORLD_SIZE"])):
        algorithm = name.split()[0]
        whole = folder / f"{algorithm} whole"
        if name == algorithm:
            seen[f"{name} whole"] = train(algorithm, whole, **often)
        path = one_of(whole, "checkpoint-*", last="end" in name)
        seen[f"{name} rest"] = train(algorithm, folder / f"{name} rest", resume=str(path), num_train_epochs=2)
    return seen


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    out = Path(sys.argv[1])
    (out / f"{RANK}.json").write_text(json.dumps(runs(out)))
