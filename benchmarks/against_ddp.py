"""`sync` on real processes beside DistributedDataParallel, and a worker's own step beside a plain loop.

    python benchmarks/against_ddp.py                                           # 2 processes on the CPU
    python benchmarks/against_ddp.py --device cuda --shares 40,20,10,10        # one GPU cut into four, under CUDA MPS

All ways take the same model, batch, backend and number of steps, in turns, and make ten steps before the clock starts;
the figures are medians over the turns, and the ratios are of neighbours in one turn. The drop-in, whose batches come
through torch's DataLoader, stands beside DistributedDataParallel with one; complete runs of ours, which pick their
samples in one call, beside one that does so too. What is a user's script (plain loops, DistributedDataParallel, the
drop-in) runs in processes of its own, apart from complete runs of ours, which set up their processes their own way. The
plain loop runs in all processes at once, without any communication.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import ownpace
from characters import Characters
from ownpace.algorithms.sync import SyncSgd
from ownpace.core.blocks.accumulate import accumulate_and_step
from ownpace.core.contract.roles import Worker
from ownpace.core.learning.sampling import Permutations
from ownpace.core.learning.task import Task
from pictures import Pictures
from shares import free_port, is_rank, run_ranks, take_share
from table import print_table

LR, MOMENTUM = 0.01, 0.9
WARM = 10
"""Steps before the clock starts."""
THEIRS = ("plain", "ddp", "loaded", "drop-in", "at the end")
OURS = ("alone", "sync")
"""These set up their processes, memory included; the others are scripts of a user's."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shares", default="", help="percent of the GPU for each process, as in 40,20,10,10")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--models", default="mlp:128:600,resnet18:16:8,gpt:16:60", help="name:batch:steps, ...")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--scripts", action="store_true", help="what a user's script can be, and no complete runs")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--ways", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if is_rank():
        run_rank(options)
        return
    print(f"{options.device} {options.shares}, {options.precision}, torch {torch.__version__}\n")
    rows, found = [], {}
    for spec in options.models.split(","):
        parts = [measure(options, spec, ways) for ways in ((THEIRS,) if options.scripts else (THEIRS, OURS))]
        found[spec] = [dict(ChainMap(*turn)) for turn in zip(*parts, strict=True)]
        rows += table(spec, found[spec])
        if options.json:
            options.json.write_text(json.dumps(found))
    print_table(("model", "batch", "what", "samples/s", "ratio", "of"), rows)


def measure(options: argparse.Namespace, spec: str, ways: tuple[str, ...]) -> list[dict[str, list[float]]]:
    """Samples per second of each rank, by the way of training, for each turn, in processes of their own."""
    count = len(options.shares.split(",")) if options.shares else options.processes
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "rates.json"
        arguments = ["--device", options.device, "--shares", options.shares, "--precision", options.precision]
        arguments += ["--models", spec, "--turns", str(options.turns), "--ways", ",".join(ways), "--json", str(found)]
        run_ranks(__file__, arguments, count, threads=1 if options.device == "cpu" else 4, quiet=True)
        turns: list[dict[str, list[float]]] = json.loads(found.read_text())
    return turns


def run_rank(options: argparse.Namespace) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    take_share(options.shares)
    dist.init_process_group("gloo")
    name, batch, steps = options.models.split(":")
    task = Characters() if name == "gpt" else Pictures(name, (1, 28, 28) if name == "mlp" else (3, 32, 32))
    bench = Bench(task, int(batch), int(steps), torch.device(options.device), options.precision, rank, world)
    measures: dict[str, Callable[[], float]] = {
        "plain": bench.plain,
        "alone": bench.alone,
        "ddp": bench.ddp,
        "loaded": bench.loaded,
        "sync": bench.sync,
        "drop-in": partial(bench.drop_in, overlap=None),
        "at the end": partial(bench.drop_in, overlap=False),
    }
    turns: list[dict[str, list[float]]] = []
    for _ in range(options.turns):
        turns.append({})
        for way in options.ways.split(","):
            dist.barrier()
            mine = measures[way]()
            everybody = [0.0] * world
            dist.all_gather_object(everybody, mine)
            turns[-1][way] = everybody
    if rank == 0:
        options.json.write_text(json.dumps(turns))
    dist.barrier()
    os._exit(0)  # gloo's threads sometimes trip over a Python that is being taken down


def table(spec: str, turns: list[dict[str, list[float]]]) -> list[tuple[str, ...]]:
    """What to print: each way with its rate, and its ratio to what it is measured against."""
    name, batch, _ = spec.split(":")
    head = (name, batch)
    rows = [(*head, "plain loops, no communication", median(sum(turn["plain"]) for turn in turns), "", "")]
    if "alone" in turns[0]:
        ranks = range(len(turns[0]["plain"]))
        alone = min(statistics.median(turn["alone"][rank] / turn["plain"][rank] for turn in turns) for rank in ranks)
        rows.append((*head, "a worker's own step (the worst rank)", "", f"{alone:.3f}", "its plain loop"))
    rows.append((*head, "DistributedDataParallel", median(turn["ddp"][0] for turn in turns), "1", ""))
    for way, what, beside, name_beside in (
        ("sync", "ownpace sync", "ddp", "DDP"),
        ("loaded", "DDP with a DataLoader", "ddp", "DDP"),
        ("drop-in", "ownpace sync, in the loop of a script", "loaded", "DDP with a DataLoader"),
        ("at the end", "the same with overlap=False", "loaded", "DDP with a DataLoader"),
    ):
        if way not in turns[0]:
            continue
        ratio = statistics.median(turn[way][0] / turn[beside][0] for turn in turns)
        rows.append((*head, what, median(turn[way][0] for turn in turns), f"{ratio:.3f}", name_beside))
    return rows


def median(rates: Iterator[float]) -> str:
    return f"{statistics.median(rates):,.0f}"


@dataclass(frozen=True, kw_only=True)
class Timed(SyncSgd):
    """`sync`, and when it was warm, and when it was over."""

    async def worker(self, me: Worker) -> None:
        steps = 0
        while me.training:
            if steps == WARM:
                moments.append(now())
            await accumulate_and_step(me, me.batch_size)
            steps += 1
        moments.append(now())


moments: list[float] = []
"""Of this process's latest run."""


class Bench:
    """One model and batch size, trained in several ways."""

    def __init__(
        self, task: Task, batch: int, steps: int, device: torch.device, precision: str, rank: int, world: int
    ) -> None:
        self._task, self._batch, self._steps, self._device = task, batch, steps, device
        self._precision, self._rank, self._world = precision, rank, world
        self._samples = task.train_samples().to(device)

    def plain(self) -> float:
        """The loop that anybody would write, everybody for himself."""
        return self._loop(self._task.model().to(self._device))

    def ddp(self) -> float:
        """The same loop with DistributedDataParallel."""
        return self._world * self._loop(DistributedDataParallel(self._task.model().to(self._device)))

    def loaded(self) -> float:
        """The same, with a DataLoader for the indices, as `fleet.batches` has one."""
        model = DistributedDataParallel(self._task.model().to(self._device))
        dataset = Whole((self._steps + WARM) * self._batch * self._world, len(self._samples))
        sampler = DistributedSampler(dataset, self._world, self._rank)
        loader = DataLoader(dataset, self._batch, sampler=sampler, collate_fn=take_whole)
        return self._world * self._loop(model, (chosen for (chosen,) in loader))

    def _in_order(self) -> Iterator[torch.Tensor]:
        order = Permutations(len(self._samples), 0, self._rank)
        for step in range(self._steps + WARM):
            yield order.indices(step * self._batch, self._batch)

    def _loop(self, model: torch.nn.Module, batches: Iterable[torch.Tensor] | None = None) -> float:
        optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
        start = 0.0
        for step, chosen in enumerate(batches or self._in_order()):
            if step == WARM:
                start = now()
            inputs, targets = self._samples.pick(chosen)
            with self._autocast():
                loss = self._task.loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return self._steps * self._batch / (now() - start)

    def drop_in(self, *, overlap: bool | None) -> float:
        """The same loop with `ownpace.join`."""
        model = self._task.model().to(self._device)
        optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
        samples = self._samples
        warm = WARM * self._batch
        dataset = Whole((self._steps * self._batch + warm) * self._world, len(samples))
        done, start = 0, 0.0
        with ownpace.join(algorithm="sync", quiet=True) as fleet:
            model, optimizer = fleet.wrap(model, optimizer, overlap=overlap)
            for (chosen,) in fleet.batches(dataset, self._batch, collate_fn=take_whole):
                if done == warm:
                    start = now()
                inputs, targets = samples.pick(chosen)
                with self._autocast():
                    loss = self._task.loss(model(inputs), targets)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                done += len(chosen)
            elapsed = now() - start
        return self._world * (done - warm) / elapsed

    def sync(self) -> float:
        """A complete run of `sync` on the same processes."""
        return self._train(self._world)

    def alone(self) -> float:
        """A run of one worker in each process at once: no communication, only our own doing."""
        with by_itself():
            return self._train(1)

    def _train(self, world: int) -> float:
        moments.clear()
        ownpace.train(
            algorithm=Timed(),
            task=self._task,
            engine="process",
            fleet=f"x{world}",
            batch_size=self._batch,
            samples=(WARM + self._steps) * self._batch * world,
            lr=LR,
            momentum=MOMENTUM,
            eval_every=10**12,
            device=str(self._device),
            precision=self._precision,
            detail=False,
        )
        start, end = moments
        return world * self._steps * self._batch / (end - start)

    def _autocast(self) -> torch.autocast:
        dtype = torch.bfloat16 if self._precision == "bfloat16" else torch.float32
        return torch.autocast(self._device.type, dtype, enabled=self._precision != "float32")


def now() -> float:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


class Whole(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Hands out indices by the batch, so that loading costs what it costs in the other ways."""

    def __init__(self, size: int, num_pictures: int) -> None:
        self._size = size
        self._num_pictures = num_pictures

    def __len__(self) -> int:
        return self._size

    def __getitems__(self, indices: list[int]) -> torch.Tensor:
        return torch.tensor(indices) % self._num_pictures


def take_whole(batch: torch.Tensor) -> tuple[torch.Tensor]:
    return (batch,)


@contextmanager
def by_itself() -> Iterator[None]:
    """Make this process believe that it is torchrun's only one."""
    before = dict(os.environ)
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", GROUP_WORLD_SIZE="1")
    os.environ.update(MASTER_PORT=str(free_port()), TORCHELASTIC_USE_AGENT_STORE="False")
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


if __name__ == "__main__":
    main()
