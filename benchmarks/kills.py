"""Workers are killed while they train: how long the others pause, what is lost, when a new one takes part.

    unshare -n sh -c 'ip link set lo up; python benchmarks/kills.py --torchft PYTHON --hivemind PYTHON [--kills 5] \
        [--algorithms sync,pace,async]'
    sh benchmarks/gpu.sh kills.py --algorithms sync,balanced,stride --shared-gpu 4      # all on one GPU: ResNet-18

PYTHON is an interpreter of an environment with torch and that system (peers/README.md); without one, it is left out.
Three workers, each batch at least 10 ms, one of them killed with SIGKILL and started again, in turns. In a network
namespace, since torchft listens on all addresses. Ours are started again by the launcher, at once; those of the others
by this script, when the survivors have trained for three seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ownpace.core.contract.errors import InputError
from ownpace.core.contract.event_file import read_events
from ownpace.core.contract.events import Compute, Detail, End, Event, Fault, Generation, Update
from peers.work import BATCH, BATCH_S, WORKERS
from table import print_table

PEERS = Path(__file__).parent / "peers"
Start = Callable[[int, Path], subprocess.Popen[str]]
Batch = dict[str, Any]


@dataclass(frozen=True)
class Found:
    """What one kill did."""

    pause_s: float
    """Of the survivors: without an update, at most; ours from the last update before the kill, others from the kill."""
    usual_s: float
    """Of the survivors: between two updates before the kill, in the median."""
    lost_batches: int
    """Of the survivors: computed, and in no update."""
    back_s: float
    """From the start of the new worker's process, ours from the kill, until it takes part in an update."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torchft", type=Path, help="an interpreter that has torchft")
    parser.add_argument("--hivemind", type=Path, help="an interpreter that has hivemind")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--algorithms", default="sync,pace,async", help="of ownpace")
    parser.add_argument("--shared-gpu", type=int, default=0, metavar="WORKERS", help="of ownpace, on one GPU")
    parser.add_argument("--patience", type=float, default=180.0, help="seconds without progress before it is given up")
    options = parser.parse_args()
    run = on_one_gpu(options.shared_gpu) if options.shared_gpu else at_a_pace()
    systems = {"torchft": torchft, "hivemind": hivemind}
    every: dict[str, list[Found]] = {}
    for algorithm in filter(None, options.algorithms.split(",")):
        try:
            every[f"ownpace, {algorithm}"] = ours(run, algorithm, options.kills, options.patience)
        except RunOver as error:
            print(f"{algorithm}: {error}", flush=True)
    for name, system in systems.items():
        python = getattr(options, name)
        if python is not None:
            every[name] = measure(python, system, options.kills)
    rows = []
    for name, found in every.items():
        for what in ("pause_s", "usual_s", "lost_batches", "back_s"):
            values = [getattr(each, what) for each in found]
            rows.append((name, what, f"{statistics.median(values):.2f}", " ".join(f"{value:.2f}" for value in values)))
    print_table(("system", "what", "median", "each kill"), rows)


class RunOver(Exception):
    """A run has ended that was to go on, or does nothing any more."""


@dataclass(frozen=True)
class Trained:
    """What our workers train, and on what."""

    workers: int
    options: tuple[str, ...]


def at_a_pace() -> Trained:
    """A small net, on processes that keep a pace."""
    fleet = ",".join([f"{BATCH / BATCH_S / 1000:g}"] * WORKERS)
    return Trained(WORKERS, ("--task", "ownpace.testing.blobs:Blobs", "--fleet", fleet))


def on_one_gpu(workers: int) -> Trained:
    """ResNet-18 on processes that share a GPU."""
    options = ("--task", "four_shares:Noise", "--batch-size", "256", "--precision", "bfloat16", "--cuda-graphs")
    return Trained(workers, (*options, "--device", "cuda", "--fleet", f"x{workers}"))


def ours(trained: Trained, algorithm: str, kills: int, patience_s: float) -> list[Found]:
    """Kill workers of `ownpace train`, which starts them again.

    Raises:
        RunOver: The others did not go on.
    """
    choice = random.Random(0)
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "run"
        command = [sys.executable, "-m", "ownpace", "train", "--algorithm", algorithm, "--engine", "process"]
        command += [*trained.options, "--log-files", "--on-failure", "restart", "--checkpoint-every", "0"]
        command += ["--epochs", "1000000", "--eval-every", "1000000000"]
        environment = {**os.environ, "PYTHONPATH": f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}"}
        run = subprocess.Popen(
            [*command, "--out", str(out)], stdout=subprocess.DEVNULL, start_new_session=True, env=environment
        )
        try:
            for number in range(1, kills + 1):
                await_whole(run, out, number - 1, patience_s)
                time.sleep(3 + choice.uniform(0, 50 * BATCH_S))
                worker = process_of(out / "logs" / f"worker-{choice.randrange(trained.workers)}.log")
                os.kill(worker, signal.SIGKILL)
            await_whole(run, out, kills, patience_s)
            time.sleep(3)
            run.send_signal(signal.SIGINT)
            run.wait(60)
        finally:
            kill(run)
        found = list(read_events(out / "events.jsonl"))
        end = found[-1]
        print(f"{algorithm}: replicas identical: {isinstance(end, End) and end.sums.replicas_identical}", flush=True)
        return _judge_ours(found)


def _is_whole(found: list[Event], kills: int) -> bool:
    """Whether the run trains with all its workers, after so many kills."""
    borders = [event for event in found if isinstance(event, Generation)]
    has_updates = any(isinstance(event, Update) for event in found)
    return has_updates and sum(event.why == "join" for event in borders) == kills


def _judge_ours(found: list[Event]) -> list[Found]:
    times = [event.t for event in found if isinstance(event, Update)]
    usual = statistics.median(later - earlier for earlier, later in pairwise(times))
    borders = [event for event in found if isinstance(event, Generation)]
    judged = []
    for fault in (event for event in found if isinstance(event, Fault)):
        death = next(event for event in borders if event.t > fault.t)
        joined = next(event for event in borders if event.t > death.t and event.why == "join")
        before = max(time for time in times if time < death.t)
        after = min(time for time in times if time > death.t)
        # Computed by survivors after the last update, and abandoned: computed again in the next generation.
        lost = sum(
            isinstance(event, Compute) and event.who != fault.who and before < event.until <= death.t for event in found
        )
        judged.append(Found(after - before, usual, lost, joined.t - fault.t))
    return judged


def await_whole(run: subprocess.Popen[Any], out: Path, kills: int, patience_s: float) -> None:
    """Wait until a run trains with all its workers, after so many kills."""
    found: list[Event] = []
    deadline = time.monotonic() + patience_s
    while run.poll() is None and time.monotonic() < deadline:
        # Not there yet, or its last line is not whole yet.
        with contextlib.suppress(OSError, InputError):
            found = list(read_events(out / "events.jsonl"))
            if _is_whole(found, kills):
                return
        time.sleep(0.3)
    told = [str(event)[:200] for event in found if not isinstance(event, Detail)]
    what = f"it did not come so far within {patience_s:g} s" if run.poll() is None else f"it ended with {run.poll()}"
    raise RunOver("\n    ".join((what, *told)))


def process_of(log: Path) -> int:
    """The process that writes a file."""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if link.readlink() == log.resolve():
                return int(link.parts[2])
    raise ProcessLookupError(f"no process writes {log}")


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


def kill(process: subprocess.Popen[Any]) -> None:
    """End it, and what it has started, at once."""
    with contextlib.suppress(ProcessLookupError):
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
        # A minute before, since some make an update in seconds only.
        times = [batch["t"] for batch in updating(folder, other) if killed_s - 60 < batch["t"] < again_s]
        usual += [later - earlier for earlier, later in pairwise(times) if later < killed_s]
        after = [later - max(earlier, killed_s) for earlier, later in pairwise(times) if later > killed_s]
        pauses.append(max(after))
        lost += sum(batch["used"] is False for batch in batches(folder, other) if killed_s < batch["t"] < again_s)
    first = next(batch["t"] for batch in updating(folder, who) if batch["t"] > again_s)
    return Found(max(pauses), statistics.median(usual) if usual else math.nan, lost, first - again_s)


if __name__ == "__main__":
    main()
