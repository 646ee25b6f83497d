"""Ranks that leave in every way they can: `… -m tests.process.scenarios_liveness FOLDER ALGORITHM WHO WHERE HOW`.

Rank WHO ends at WHERE, by HOW; every rank writes what it was told, and after how long.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch
from tests.process.small_net import RANK, Numbers, make_net, mean_loss, sgd

import ownpace

_ended_s = Path("ended")
"""A file that is written when the rank ends."""


class Leaver:
    """Rank `who` leaves at `where`, by `how`; the others do not."""

    def __init__(self, folder: Path, who: int, where: str, how: str) -> None:
        self._folder, self._who, self._where, self._how = folder, who, where, how

    def at(self, where: str) -> bool:
        """Whether this rank skips what comes now; it may end instead."""
        if self._who != RANK or where != self._where:
            return False
        if self._how == "skip":
            return True
        (self._folder / "left").write_text(str(time.time()))
        if self._how.startswith("exit"):
            os._exit(int(self._how[-1]))
        if self._how == "sys.exit":
            sys.exit(3)
        if self._how == "stop":  # as a cable that is pulled: nothing is closed, and nothing answers
            os.kill(os.getpid(), signal.SIGSTOP)
        if self._how == "raise":
            raise KeyError("the user's own mistake")
        return False


def loops(algorithm: str, leaver: Leaver, loops: int = 2) -> None:
    net = make_net()
    optimizer = sgd(net)
    with ownpace.join(algorithm) as fleet:
        leaver.at("after join")
        fleet.wrap(net, optimizer)
        leaver.at("after wrap")
        for loop in range(loops):
            if leaver.at(f"before loop {loop}"):
                continue
            for number, (x, y, _) in enumerate(fleet.batches(Numbers(64), 8, epochs=3)):
                if number == 2:
                    leaver.at(f"in loop {loop}")
                mean_loss(net, x, y).backward()
                optimizer.step()
                optimizer.zero_grad()
        leaver.at("after loops")


def main() -> None:
    folder, algorithm, who, where, how = sys.argv[1:]
    torch.set_num_threads(1)

    seen: dict[str, Any] = {}
    leaver = Leaver(Path(folder), int(who), where, how)
    try:
        loops(algorithm, leaver)
    except Exception as error:
        traceback.print_exc()
        seen = {"kind": type(error).__name__, "text": str(error)}
    seen["s"] = time.time()
    (Path(folder) / f"{RANK}.json").write_text(json.dumps(seen))
    sys.exit(1 if "kind" in seen else 0)


if __name__ == "__main__":
    main()
