"""What our own bookkeeping costs on processes, by the number of workers; and how long they take to start.

    python benchmarks/bookkeeping.py --workers 2,4,8,16,32,64

CPU time of an update, of all threads, with a net that is next to nothing: of a worker, of the hub, and beside them of a
process that does the bare minimum: the same gradient, gloo's sum of the same vector, the same step. What is left is
ours. CPU time, because it is what many workers on few cores share; it does not count waiting. From two runs, one
longer than the other: starting and meeting cancel out. Start: wall time and CPU time of all processes, from the command
to its end, of a run that makes one update.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from ownpace import read_fleet
from ownpace.algorithms.balanced import BalancedSgd
from ownpace.algorithms.sync import SyncSgd
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.roles import Worker
from ownpace.core.learning.optimizer import OptimizerSpec
from ownpace.core.learning.task import Task
from ownpace.engines import Job, run_process
from ownpace.testing.blobs import Blobs
from shares import free_port
from table import print_table

BATCH = 8
SPEC = OptimizerSpec(lr=0.01, momentum=0.9)
_CHILD_SUBREAPER = 36
"""The number of this option in Linux's prctl.h."""


class Timed(Algorithm):
    """Writes down what its workers' CPUs were busy for, from their first word to their last."""

    folder: str

    async def worker(self, me: Worker) -> None:
        begun_s, before = time.process_time(), me.updates
        await super().worker(me)  # type: ignore[safe-super]  # of the algorithm that stands beside this
        done = f"{time.process_time() - begun_s} {me.updates - before}"
        Path(self.folder, me.address.name).write_text(done)


@dataclass(frozen=True, kw_only=True)
class TimedSync(Timed, SyncSgd):
    """`sync`, timed."""

    folder: str = ""


@dataclass(frozen=True, kw_only=True)
class TimedBalanced(Timed, BalancedSgd):
    """`balanced`, timed."""

    folder: str = ""


ALGORITHMS: dict[str, type[Algorithm]] = {"sync": TimedSync, "balanced": TimedBalanced}
"""Those whose updates have one gradient of each worker: with others there is nothing to compare them with."""


@dataclass(frozen=True)
class Cost:
    """CPU seconds of a run."""

    worker_s: float
    """The mean over workers."""
    hub_s: float
    updates: int


def ours(name: str, num_workers: int, updates: int) -> Cost:
    """What a run of about so many updates costs."""
    with tempfile.TemporaryDirectory() as folder:
        job = Job(
            algorithm=ALGORITHMS[name](folder=folder),  # type: ignore[call-arg]  # each of them has a folder
            task=Blobs(),
            fleet=read_fleet(f"x{num_workers}"),
            optimizer=SPEC,
            batch_size=BATCH,
            samples=BATCH * num_workers * updates,
            eval_every=10**12,
            detail=False,
        )
        begun_s = time.process_time()
        outcome = run_process(job, lambda event: None)
        if outcome.error is not None:
            raise outcome.error
        hub_s = time.process_time() - begun_s
        said = [path.read_text().split() for path in Path(folder).iterdir()]
    return Cost(statistics.mean(float(cpu_s) for cpu_s, _ in said), hub_s, int(said[0][1]))


def per_update(name: str, num_workers: int, updates: int) -> tuple[float, float]:
    """CPU seconds of a worker and of the hub for one update."""
    short, long = ours(name, num_workers, updates), ours(name, num_workers, 4 * updates)
    more = long.updates - short.updates
    return (long.worker_s - short.worker_s) / more, (long.hub_s - short.hub_s) / more


def bare(num_workers: int, updates: int) -> float:
    """CPU seconds of one process for the least that an update takes."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_bare, (num_workers, updates, free_port(), folder), nprocs=num_workers)
        return statistics.mean(float(path.read_text()) for path in Path(folder).iterdir())


def _bare(rank: int, num_workers: int, updates: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=num_workers)
    task: Task = Blobs()
    model, samples = task.model(), Blobs().train_samples()
    optimizer = SPEC.build(model.parameters())
    vector = torch.zeros(sum(parameter.numel() for parameter in model.parameters()))
    order = torch.randperm(len(samples))
    for number in range(updates + updates // 4):
        if number == updates // 4:
            begun_s = time.process_time()
        first = BATCH * number % (len(order) - BATCH)
        inputs, targets = samples.pick(order[first : first + BATCH])
        loss = task.objective(model, inputs, targets)
        parameters = list(model.parameters())
        torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, parameters)], out=vector)
        dist.all_reduce(vector)
        parts = vector.split([parameter.numel() for parameter in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter) / num_workers
        optimizer.step()
    Path(folder, str(rank)).write_text(str((time.process_time() - begun_s) / updates))
    dist.barrier()
    os._exit(0)  # gloo's threads sometimes trip over a Python that is being taken down


def start_up(num_workers: int) -> tuple[float, float]:
    """Seconds, and CPU seconds of all processes, of a run that makes one update."""
    before, begun_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "ownpace", "train", "--engine", "process", "--fleet", f"x{num_workers}"]
        command += ["--task", "quadratic", "--samples", str(8 * num_workers), "--batch-size", "8", "--no-detail"]
        command += ["--algorithm", "sync", "--json", "--out", str(Path(folder) / "run")]
        subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, capture_output=True)
    took_s = time.perf_counter() - begun_s
    _wait_for_orphans()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return took_s, cpu_s


def _adopt_orphans() -> None:
    """Workers are forked by a server that nobody waits for: what they cost is known once they have become ours."""
    ctypes.CDLL(None).prctl(_CHILD_SUBREAPER, 1, 0, 0, 0)


def _wait_for_orphans() -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", default="2,4,8,16,32,64", help="how many, with commas between")
    parser.add_argument("--algorithms", default=",".join(ALGORITHMS))
    parser.add_argument("--updates", type=int, default=400, help="of the shorter run; the longer has four times that")
    parser.add_argument("--turns", type=int, default=3, help="of which the least is taken")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    numbers = [int(number) for number in options.workers.split(",")]
    # First: later on there are children that nothing ends.
    _adopt_orphans()
    starts = [(f"{number}", *(f"{value:.1f} s" for value in start_up(number))) for number in numbers]
    print("A run of one update, from the command to its end:\n")
    print_table(("workers", "time", "CPU time of all"), starts)
    rows = []
    for num_workers in numbers:
        least = min(bare(num_workers, options.updates) for _ in range(options.turns))
        for name in options.algorithms.split(","):
            turns = [per_update(name, num_workers, options.updates) for _ in range(options.turns)]
            worker_s, hub_s = (min(column) for column in zip(*turns, strict=True))
            micros = (1e6 * value for value in (least, worker_s, worker_s - least, hub_s))
            rows.append((f"{num_workers}", name, *(f"{value:,.0f}" for value in micros)))
    print("\nCPU time of an update, in µs:\n")
    print_table(("workers", "algorithm", "bare minimum", "a worker", "of that ours", "the hub"), rows)


if __name__ == "__main__":
    main()
