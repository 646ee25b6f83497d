"""Ranks of a run to one of which a signal is sent: `… -m tests.process.scenarios_departures FOLDER ALGORITHM SETTINGS`.

Rank 0 leads: what happens next, and when, it decides by the run's events. Each rank writes how it ended.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ownpace import make_algorithm
from ownpace.core.contract.errors import OwnpaceError
from ownpace.core.contract.events import Event, Fault, Generation, Update
from ownpace.core.learning.claims import Places
from ownpace.engines import Job, run_process
from ownpace.engines.process.hub import departures
from ownpace.engines.process.meet import interrupts
from ownpace.fleet import ServerMachine, paces
from ownpace.testing.counted import CountedSamples, counting, miscounted

SIZE = 997
FOR_EVER_S = 10_000.0
RANK = int(os.environ.get("RANK", "0"))
Step = tuple[Callable[[Event], bool], Callable[[], None]]


def samples(number: int) -> Callable[[Event], bool]:
    return lambda event: isinstance(event, Update) and event.total_samples >= number


def begins(*whys: str) -> Callable[[Event], bool]:
    return lambda event: isinstance(event, Generation) and event.why in whys


def send(folder: Path, number: signal.Signals, *ranks: int) -> Callable[[], None]:
    """Send a signal to these ranks, in this order."""

    def act() -> None:
        for rank in ranks:
            os.kill(int((folder / f"{rank}.pid").read_text()), number)

    return act


def number_dealt(left: Sequence[Places]) -> int:
    """How many places come before the last that is left, and are not."""
    stops = [0, *(stop for _, stop in left)]
    return sum(start - stop for (start, _), stop in zip(left, stops, strict=False))


def script(folder: Path, asked: list[tuple[int, list[int]]], number: signal.Signals, awaited: list[str]) -> list[Step]:
    """Signal ranks, each time after so many samples; when the run has gone on for these reasons, one after the other,
    and then on to another checkpoint, let it end. Without reasons, it is to end by itself."""
    steps: list[Step] = [(samples(after), send(folder, number, *ranks)) for after, ranks in asked]
    steps += [(begins(why), lambda: None) for why in awaited]
    return [*steps, (begins("checkpoint"), send(folder, signal.SIGINT, 0))] if awaited else steps


def main() -> None:
    folder, algorithm, settings = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    torch.set_num_threads(1)
    asked, number, awaited = settings.pop("asked"), settings.pop("signal"), settings.pop("awaited")
    # Whatever depends on how busy a machine is, is decided by the test.
    interrupts.PATIENCE_S = FOR_EVER_S
    departures.ALL_ASKED_S = settings.pop("moment_s", 0.2)
    departures.TO_BORDER_S = settings.pop("to_border_s", FOR_EVER_S)
    servers = tuple(ServerMachine(host=host) for host in settings.pop("hosts", [0]))
    steps = script(folder, asked, signal.Signals[number], awaited)
    seen: dict[str, Any] = {"faults": [], "generations": [], "updates": [], "wrong": []}

    def emit(event: Event) -> None:
        if isinstance(event, Fault):
            seen["faults"].append([event.who, event.what])
        if isinstance(event, Generation):
            seen["generations"].append([event.why, event.members, event.lost])
        if isinstance(event, Update):
            seen["updates"].append(event.total_samples)
        if steps and steps[0][0](event):
            steps.pop(0)[1]()

    def on_checkpoint(state: Any) -> None:
        if algorithm != "stride":  # which averages parameters
            seen["wrong"] += miscounted(state, SIZE)
        seen["checkpoint"] = max(worker["counts"]["samples"] for worker in state["workers"].values())
        seen["dealt"] = number_dealt(state["left"])

    job = Job(
        algorithm=make_algorithm(algorithm),
        task=CountedSamples(size=SIZE),
        fleet=replace(paces(2000, 2000, 1000, jitter=0.0), server=servers),
        optimizer=counting(),
        batch_size=8,
        samples=10**9,
        on_checkpoint=on_checkpoint,
        checkpoint_every=10_000 if awaited else None,
        **settings,
    )
    (folder / f"{RANK}.pid").write_text(str(os.getpid()))
    code = 0
    try:
        outcome = run_process(job, emit)
        seen["reason"] = outcome.reason
        code = 0 if outcome.error is None else outcome.error.exit_code
    except OwnpaceError as error:
        seen["reason"], code = str(error), error.exit_code
    (folder / f"{RANK}.json").write_text(json.dumps(seen))
    sys.exit(code)


if __name__ == "__main__":
    main()
