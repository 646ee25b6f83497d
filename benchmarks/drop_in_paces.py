"""The drop-in on machines of prescribed pace: the share of the sum of their speeds that a script's own loop reaches.

    python benchmarks/drop_in_paces.py [--algorithm pace] [--seconds 8] [--turns 3] [--loading apart]

Four processes; a batch of 64 takes 16, 32, 64 and 64 ms, in which a small perceptron computes its gradient and then
sleeps; who sleeps too long makes up for it in the next batch, as `ownpace train` does. Three ways in turns: the same
loop in every process without any communication (what the loop itself allows), the same loop with `ownpace.join`, and
`ownpace train` with the same net, paces and batch.

The time of a batch begins when it is asked for, as it does in `ownpace train`; with `--loading apart`, when it is
there. With `join` and in `train`, samples count once they are in an update.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import ownpace
from pictures import Pictures
from shares import free_port
from table import print_table

PACES = (4000.0, 2000.0, 1000.0, 1000.0)
BATCH, LR, MOMENTUM = 64, 0.05, 0.9
WAYS = {"plain": "the loop alone, no communication", "drop-in": "with ownpace.join", "train": "ownpace train"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithm", default="pace")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--loading", choices=("within", "apart"), default="within", help="… the time of a batch")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if "RANK" in os.environ:
        run_rank(options)
        return
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(options.turns):
        for way, rates in found.items():
            rates.append(train(options) if way == "train" else measure(options, way))
    rows = []
    for way, rates in found.items():
        shares = [rate / sum(PACES) for rate in rates]
        rows.append((WAYS[way], f"{statistics.median(shares):.1%}", " ".join(f"{share:.1%}" for share in shares)))
    print(f"{options.algorithm}, {options.seconds:g} s each, loading {options.loading}\n")
    print_table(("way", "of the sum of speeds", "turns"), rows)


def measure(options: argparse.Namespace, way: str) -> float:
    """Samples per second of all ranks together."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "rates.json"
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(len(PACES))]
        command += ["--master-addr", "127.0.0.1", "--master-port", str(free_port()), __file__, "--way", way]
        command += ["--algorithm", options.algorithm, "--seconds", str(options.seconds), "--json", str(found)]
        command += ["--loading", options.loading]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        return sum(json.loads(path.read_text()) for path in Path(folder).glob("rates.json.*"))


def run_rank(options: argparse.Namespace) -> None:
    rank = int(os.environ["RANK"])
    machine = Machine(1 / PACES[rank], loads=options.loading == "within")
    rate = {"plain": plain, "drop-in": drop_in}[options.way](options, machine)
    Path(f"{options.json}.{rank}").write_text(json.dumps(rate))


def plain(options: argparse.Namespace, machine: Machine) -> float:
    """The loop, each process for itself."""
    task, dataset = data()
    model = task.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    done, start = 0, 0.0
    while True:
        for x, y in DataLoader(dataset, BATCH, shuffle=True):
            start = start or machine.begin()
            done += machine.learn(task, model, optimizer, x, y)
            if (seconds := time.perf_counter() - start) > options.seconds:
                return done / seconds


def drop_in(options: argparse.Namespace, machine: Machine) -> float:
    """The same loop in a fleet; rank 0 answers for all."""
    task, dataset = data()
    model = task.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    samples, seconds, start = 0, 1.0, 0.0
    with ownpace.join(options.algorithm) as fleet:
        model, optimizer = fleet.wrap(model, optimizer)
        epochs = 1 + int(sum(PACES) * 2 * options.seconds / len(dataset))
        for x, y in fleet.batches(dataset, BATCH, epochs=epochs):
            start = start or machine.begin()
            machine.learn(task, model, optimizer, x, y)
            # Before the loop ends, which takes some sums more.
            samples, seconds = fleet.samples, time.perf_counter() - start
            if fleet.is_main and seconds > options.seconds:
                break
        return samples / seconds if fleet.is_main else 0.0


def data() -> tuple[Pictures, TensorDataset]:
    task = Pictures("mlp", (1, 28, 28))
    samples = task.train_samples()
    return task, TensorDataset(*samples.pick(torch.arange(len(samples))))


class Machine:
    """A machine of a prescribed pace."""

    def __init__(self, sample_s: float, *, loads: bool) -> None:
        """`loads`: the time of a batch begins when it is asked for."""
        self._sample_s = sample_s
        self._loads = loads
        self._overslept_s = 0.0
        self._asked_s = 0.0

    def begin(self) -> float:
        """Begin with the batch that is there; returns when that was."""
        self._asked_s = time.perf_counter()
        return self._asked_s

    def learn(
        self,
        task: Pictures,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        x: torch.Tensor,
        y: torch.Tensor,
    ) -> int:
        """One batch: its gradient takes the prescribed time."""
        begun = self._asked_s if self._loads else time.perf_counter()
        until = begun + len(x) * self._sample_s - self._overslept_s
        task.loss(model(x), y).backward()
        left = until - time.perf_counter()
        time.sleep(max(0.0, left))
        self._overslept_s = time.perf_counter() - until if left > 0 else 0.0
        optimizer.step()
        optimizer.zero_grad()
        self._asked_s = time.perf_counter()
        return len(x)


def train(options: argparse.Namespace) -> float:
    """A complete run with the same paces."""
    result = ownpace.train(
        algorithm=options.algorithm,
        task=Pictures("mlp", (1, 28, 28)),
        engine="process",
        fleet=",".join(f"{pace / 1000:g}" for pace in PACES),
        batch_size=BATCH,
        seconds=options.seconds,
        lr=LR,
        momentum=MOMENTUM,
        eval_every=10**12,
        detail=False,
    )
    return result.summary.samples_per_s


if __name__ == "__main__":
    main()
