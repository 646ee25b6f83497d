"""Ranks that leave in every way they can: `… -m tests.process.scenarios_liveness FOLDER ALGORITHM WHO WHERE HOW`.

Rank WHO ends at WHERE, by HOW; every rank that can writes what it was told. `… FOLDER calls` is what ranks tell each
other between loops.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tests.process.small_net import RANK, Numbers, make_net, mean_loss, sgd, wrapped

import ownpace
from ownpace.drop_in import Joined
from ownpace.engines.process.run import joining


class Leaver:
    """Rank `who` leaves at `where`, by `how`; the others do not."""

    def __init__(self, who: int, where: str, how: str) -> None:
        self._who, self._where, self._how = who, where, how

    def at(self, where: str) -> bool:
        """Whether this rank skips what comes now; it may end instead."""
        if self._who != RANK or where != self._where:
            return False
        if self._how.startswith("os._exit"):
            os._exit(int(self._how[-1]))
        if self._how == "sys.exit":
            sys.exit(3)
        if self._how == "stop":  # as if its cable were pulled: nothing is closed, and nothing answers
            os.kill(os.getpid(), signal.SIGSTOP)
        if self._how in signal.Signals.__members__:
            signal.raise_signal(signal.Signals[self._how])
        if self._how == "raise":
            raise KeyError("the user's own mistake")
        return self._how == "skip"


def leave(algorithm: str, leaver: Leaver, ended: list[int]) -> None:
    """Two loops; `ended` is told of each that has ended."""
    net = make_net()
    optimizer = sgd(net)
    with ownpace.join(algorithm, on_failure="stop") as fleet:
        leaver.at("after join")
        fleet.wrap(net, optimizer)
        leaver.at("after wrap")
        for loop in range(2):
            if leaver.at(f"before loop {loop}"):
                continue
            size = 32 if leaver.at("smaller") and loop else 64
            for number, (x, y, _) in enumerate(fleet.batches(Numbers(size), 8, epochs=3, sampling="shards")):
                if number == 2:
                    leaver.at(f"in loop {loop}")
                mean_loss(net, x, y).backward()
                optimizer.step()
                optimizer.zero_grad()
            ended.append(loop)
        leaver.at("after loops")


def refused(function: Callable[[], object]) -> str:
    try:
        function()
    except ownpace.InputError as error:
        return str(error)
    return ""


def calls() -> dict[str, Any]:
    """Every call, wherever it is allowed; then one on each rank that the other does not make."""
    seen: dict[str, Any] = {}
    with ownpace.join("sync") as fleet:
        seen["main"] = fleet.is_main
        fleet.print(f"printed by rank {fleet.rank}")
        seen["before wrap"] = fleet.reduce({"loss": float(RANK), "count": [RANK + 1]}, op="sum")
        seen["mean"] = fleet.reduce(torch.tensor([RANK, 3.0])).tolist()
        net, optimizer = wrapped(fleet)
        seen["loops"] = [loop(fleet, net, optimizer) for _ in range(2)]
        seen["ragged"] = [each.tolist() for each in fleet.gather(torch.arange(RANK + 1))]
        fleet.barrier()
        seen["after"] = fleet.reduce(RANK, op="max")
        seen["other shapes"] = refused(lambda: fleet.reduce(torch.ones(RANK + 1)))
        seen["afterwards"] = fleet.gather({"rank": RANK, "name": "x"})
    with ownpace.join("sync") as fleet:  # nothing but a call
        seen["again"] = fleet.gather(RANK)
        time.sleep(0.2 * RANK)
    seen["different calls"] = refused(lambda: differ(lambda fleet: fleet.barrier() if RANK else fleet.reduce(1)))
    seen["a loop"] = refused(lambda: differ(lambda fleet: loop(fleet, *wrapped(fleet)) if RANK else fleet.barrier()))
    seen["the end"] = refused(lambda: differ(lambda fleet: None if RANK else fleet.gather(1)))
    return seen


def differ(function: Callable[[Joined], object]) -> None:
    with ownpace.join("sync") as fleet:
        function(fleet)


def loop(fleet: Joined, net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
    message = ""
    for x, y, _ in fleet.batches(Numbers(16), 8):
        message = refused(fleet.barrier)
        mean_loss(net, x, y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [message, fleet.reduce(1, op="sum")]


def main() -> None:
    folder, *words = sys.argv[1:]
    torch.set_num_threads(1)
    seen: dict[str, Any] = {}
    ended: list[int] = []
    # Of a rank that fails, whatever else this machine does: it is heard of, and waited for no longer.
    joining._MAY_RAISE_S = 60.0
    try:
        if words == ["calls"]:
            seen = calls()
        else:
            algorithm, who, where, how = words
            leave(algorithm, Leaver(int(who), where, how), ended)
    except Exception as error:
        traceback.print_exc()
        seen = {"kind": type(error).__name__, "text": str(error), "ended": ended}
    (Path(folder) / f"{RANK}.json").write_text(json.dumps(seen))
    sys.exit(1 if "kind" in seen else 0)


if __name__ == "__main__":
    main()
