"""Workers are killed while they train: how long the others pause, what is lost, when a new one takes part.

    unshare -n sh -c 'ip link set lo up; python benchmarks/kills.py --torchft PYTHON --hivemind PYTHON [--kills 5]'

PYTHON is an interpreter of an environment with torch and that system; without one, it is left out. Three workers, each
batch at least 10 ms, one of them killed with SIGKILL and started again, in turns. In a network namespace, since torchft
listens on all addresses. Times are from the kill to the first batch that is in an update.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from peers.work import BATCH_S, WORKERS
from table import print_table

PEERS = Path(__file__).parent / "peers"
Start = Callable[[int, Path], subprocess.Popen[str]]
Batch = dict[str, Any]


@dataclass(frozen=True)
class Found:
    """What one kill did."""

    pause_s: float
    """Of the survivors: without an update, at most."""
    usual_s: float
    """Of the survivors: between two updates before the kill, in the median."""
    lost_batches: int
    """Of the survivors: computed, and in no update."""
    back_s: float
    """From the new worker's first batch to the first after which it knows of an update."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torchft", type=Path, help="an interpreter that has torchft")
    parser.add_argument("--hivemind", type=Path, help="an interpreter that has hivemind")
    parser.add_argument("--kills", type=int, default=5)
    options = parser.parse_args()
    systems = {"torchft": torchft, "hivemind": hivemind}
    rows = []
    for name, system in systems.items():
        python = getattr(options, name)
        if python is None:
            continue
        found = measure(python, system, options.kills)
        for what in ("pause_s", "usual_s", "lost_batches", "back_s"):
            values = [getattr(each, what) for each in found]
            rows.append((name, what, f"{statistics.median(values):.2f}", " ".join(f"{value:.2f}" for value in values)))
    print_table(("system", "what", "median", "each kill"), rows)


@contextmanager
def torchft(python: Path) -> Iterator[Start]:
    """Replicas under a lighthouse."""
    command = [str(python.parent / "torchft_lighthouse"), "--bind", "127.0.0.1:29510", "--min_replicas", "1"]
    lighthouse = subprocess.Popen([*command, "--join_timeout_ms", "1000"], stderr=subprocess.DEVNULL)
    try:
        yield lambda number, folder: start(
            python, "torchft_worker.py", str(number), str(folder), "http://127.0.0.1:29510"
        )
    finally:
        lighthouse.kill()
        lighthouse.wait()


@contextmanager
def hivemind(python: Path) -> Iterator[Start]:
    """Peers, all of whom know the first, which is never killed."""
    known: list[str] = []

    def begin(number: int, folder: Path) -> subprocess.Popen[str]:
        peer = known[0] if known else "first"
        process = start(python, "hivemind_worker.py", str(number), str(folder), peer)
        assert process.stdout is not None
        known.append(process.stdout.readline().strip())
        return process

    yield begin


def start(python: Path, script: str, *arguments: str) -> subprocess.Popen[str]:
    command = [str(python), str(PEERS / script), *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )


def measure(python: Path, system: Callable[[Path], Any], kills: int) -> list[Found]:
    """Kill a worker, and again."""
    choice = random.Random(0)
    found = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        begin = stack.enter_context(system(python))
        running = {number: begin(number, folder) for number in range(WORKERS)}
        stack.callback(lambda: [kill(process) for process in running.values()])
        for _ in range(kills):
            await_updates(folder, list(running), since=time.monotonic(), seconds=3.0)
            time.sleep(choice.uniform(0, 50 * BATCH_S))
            who = choice.randrange(1, WORKERS)
            killed_s = time.monotonic()
            kill(running[who])
            others = [number for number in running if number != who]
            await_updates(folder, others, since=killed_s, seconds=3.0)
            again_s = time.monotonic()
            running[who] = begin(who, folder)
            await_updates(folder, [who], since=again_s, seconds=0.0)
            found.append(judge(folder, who, others, killed_s, again_s))
            print(found[-1], flush=True)
    return found


def kill(process: subprocess.Popen[str]) -> None:
    """End it, and what it has started, at once."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def await_updates(folder: Path, workers: list[int], *, since: float, seconds: float, patience_s: float = 180.0) -> None:
    """Wait until each of these workers has had updates for so long."""
    deadline = time.monotonic() + patience_s
    for worker in workers:
        while not any(batch["t"] > since + seconds for batch in updating(folder, worker)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"worker {worker} made no update within {patience_s} s")
            time.sleep(0.2)


def batches(folder: Path, worker: int) -> list[Batch]:
    """What a worker recorded, in all its lives."""
    lines = [line for path in folder.glob(f"{worker}-*.jsonl") for line in path.read_text().splitlines()]
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:  # it was killed while writing
            continue
    return sorted(found, key=lambda batch: batch["t"])


def updating(folder: Path, worker: int) -> list[Batch]:
    """The batches after which there was an update more than before."""
    found, latest = [], 0
    for batch in batches(folder, worker):
        if batch["update"] > latest:
            found.append(batch)
            latest = batch["update"]
    return found


def judge(folder: Path, who: int, others: list[int], killed_s: float, again_s: float) -> Found:
    """What a kill did, from the records."""
    pauses, usual, lost = [], [], 0
    for other in others:
        times = [batch["t"] for batch in updating(folder, other) if killed_s - 10 < batch["t"] < again_s]
        usual += [later - earlier for earlier, later in pairwise(times) if later < killed_s]
        after = [later - max(earlier, killed_s) for earlier, later in pairwise(times) if later > killed_s]
        pauses.append(max(after))
        lost += sum(batch["used"] is False for batch in batches(folder, other) if killed_s < batch["t"] < again_s)
    mine = [batch["t"] for batch in batches(folder, who) if batch["t"] > again_s]
    first = next(batch["t"] for batch in updating(folder, who) if batch["t"] > again_s)
    return Found(max(pauses), statistics.median(usual), lost, first - mine[0])


if __name__ == "__main__":
    main()
