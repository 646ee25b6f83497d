"""Ranks that die in the middle of a user's loops: `… -m tests.process.scenarios_deaths FOLDER MODEL ALGORITHM DEATH…`.

A DEATH is `RANK:LOOP:BATCH:HOW`. Rank RANK dies in that loop when it has got that batch (or `-`: before the loop), by
HOW: `kill`, `step` (killed between its step and the next batch), `stop`, or a number: killed so many milliseconds
later, wherever it is then. Every rank that lives to the end writes what it has.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tests.process.small_net import RANK, Numbers, adamw, flat, make_net, mean_loss
from torch import Tensor, nn

import ownpace
from ownpace.drop_in import Joined
from ownpace.testing.counted import CountingOptimizer, SampleCounters

SIZE, BATCH, LOOPS, EPOCHS = 403, 8, 2, 2
PARAMETERS: dict[str, dict[str, Any]] = {"local": {"steps": 3}, "grouping": {"prerun": 1, "regroup_every": 4}}


class Deaths:
    """When this rank dies."""

    def __init__(self, words: list[str], back: str | None) -> None:
        self._woken: int | None = None
        self._mark = None if back is None else Path(back).with_suffix(".dead")
        self._mine = [word.split(":")[1:] for word in words if word.partition(":")[0] == str(RANK)]

    def at(self, loop: int, batch: object, *, stepped: bool = False) -> None:
        """It may die now."""
        for where, when, how in self._mine:
            if (where, when) != (str(loop), str(batch)) or stepped != (how == "step"):
                continue
            if self._mark is not None:
                self._mark.touch()
            if how.isdecimal():
                threading.Timer(int(how) / 1000, die).start()
            else:
                os.kill(os.getpid(), signal.SIGSTOP if how == "stop" else signal.SIGKILL)
                self._woken = int(when)

    def is_back(self, batch: int) -> bool:
        """Whether this rank was stopped, and has got another batch since."""
        return self._woken is not None and batch > self._woken


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def counted(inputs: Tensor, model: nn.Module) -> Tensor:
    loss: Tensor = model(inputs).mean()
    return loss


def normed(batch: Any, model: nn.Module) -> Tensor:
    model.train(len(batch[0]) > 1)  # BatchNorm refuses a batch of one sample
    return mean_loss(model, batch[0], batch[1])


def make(kind: str) -> tuple[nn.Module, torch.optim.Optimizer, Any, Callable[[Any, nn.Module], Tensor]]:
    """A model, its optimizer, its data, and its loss."""
    if kind == "counted":
        model = SampleCounters(SIZE)
        return model, CountingOptimizer(model.parameters()), list(range(SIZE)), counted
    net = make_net(norm=True)
    return net, adamw(net), Numbers(SIZE), normed


def train(fleet: Joined, kind: str, deaths: Deaths, options: dict[str, str]) -> dict[str, Any]:
    sampling, save = options.get("sampling", "queue"), options.get("save")
    model, optimizer, data, loss = make(kind)
    total = LOOPS * EPOCHS * SIZE / (BATCH * fleet.num_workers)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=int(total))
    fleet.wrap(model, optimizer, scheduler=scheduler if kind == "adamw" else None)
    second = second_model(fleet) if "models" in options else None
    loader = {"num_workers": int(options["workers"])} if "workers" in options else {}
    losses = []
    pauses_s, last_s = [0.0], math.inf
    first = fleet.epoch // EPOCHS if "from_epoch" in options else 0
    for loop in range(first, LOOPS):
        deaths.at(loop, "-")
        batches = fleet.batches(data, BATCH, epochs=EPOCHS, sampling=sampling, **loader)  # type: ignore[arg-type]
        for number, batch in enumerate(batches):
            deaths.at(loop, number)
            if "back" in options:
                await_return(Path(options["back"]), is_back="again" in options or deaths.is_back(number))
            loss(batch, model).backward()
            optimizer.step()
            optimizer.zero_grad()
            if second is not None:  # as a GAN has it: two steps for each batch
                counted(batch, second[0]).backward()
                second[1].step()
                second[1].zero_grad()
            now_s = time.monotonic()
            pauses_s.append(now_s - last_s)
            last_s = now_s
            deaths.at(loop, number, stepped=True)
            time.sleep(0.003)
        present = fleet.gather(fleet.rank)
        average = fleet.reduce(float(fleet.rank))
        if save is not None and fleet.is_main:
            fleet.save(save)
        losses.append(fleet.reduce({"loop": loop}, op="max"))
    deaths.at(LOOPS, "-")
    fleet.barrier()
    layers = [model.low, model.high, *(() if second is None else second[0].parameters())] if kind == "counted" else []
    wrong = {
        f"{layer} {index}": int(count)
        for layer, counts in enumerate(layers)
        for index, count in enumerate(counts.tolist())
        if count != LOOPS * EPOCHS
    }
    return {
        "rank": fleet.rank,
        "workers": fleet.num_workers,
        "present": present,
        "average": average,
        "samples": fleet.samples,
        "updates": fleet.updates,
        "epoch": fleet.epoch,
        "rate": optimizer.param_groups[0]["lr"],
        "wrong": wrong,
        "model": digest(flat(model)),
        "state": digest(torch.cat([each.reshape(-1).double() for each in states(optimizer)])),
        "pause": max(pauses_s),
        "batches": len(pauses_s) - 1,
        "losses": losses,
    }


def second_model(fleet: Joined) -> tuple[SampleCounters, CountingOptimizer]:
    model = SampleCounters(SIZE)
    return fleet.wrap(model, CountingOptimizer(model.parameters()))


def await_return(came: Path, *, is_back: bool) -> None:
    """Do not come to the end before the rank that dies, or has died, is back and has got a batch."""
    if is_back:
        came.touch()
    deadline = time.monotonic() + 2.0
    while came.with_suffix(".dead").exists() and not came.exists() and time.monotonic() < deadline:
        time.sleep(0.02)


def states(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    found = [each[key] for each in optimizer.state.values() for key in sorted(each)]
    return [torch.zeros(1), *(torch.as_tensor(each) for each in found)]


def digest(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.detach().numpy().tobytes()).hexdigest()[:12]


def main() -> None:
    folder, kind, algorithm, *words = sys.argv[1:]
    options = dict(word.split("=") for word in words if "=" in word)
    for_join: dict[str, Any] = {name: options[name] for name in ("on_failure",) if name in options}
    if "min_workers" in options:
        for_join["min_workers"] = int(options["min_workers"])
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    seen: dict[str, Any] = {}
    try:
        with ownpace.join(algorithm, parameters=PARAMETERS.get(algorithm), **for_join) as fleet:
            deaths = Deaths([word for word in words if "=" not in word], options.get("back"))
            seen = train(fleet, kind, deaths, options)
        assert fleet.summary is not None
        seen["identical"] = fleet.summary.replicas_identical
    except ownpace.OwnpaceError as error:
        seen = {"kind": type(error).__name__, "text": str(error), "at": time.time()}
    with contextlib.suppress(OSError):
        (Path(folder) / f"{RANK}.json").write_text(json.dumps(seen))
    sys.exit(1 if "kind" in seen else 0)


if __name__ == "__main__":
    main()
