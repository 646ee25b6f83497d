"""What the virtual engine costs beside the gradients it computes.

    python benchmarks/real_gradients.py

The yardstick is a plain PyTorch loop over batches of the same sizes, on the same model and data, with as many optimizer
steps as the algorithm makes updates. Both are timed in turns, in one run; the figures are medians. CPU time, not the
clock's: both use one thread, and what else the machine does is not counted.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from ownpace import make_algorithm, read_fleet
from ownpace.core.learning.optimizer import OptimizerSpec
from ownpace.core.learning.sampling import Permutations
from ownpace.engines import Job, run_virtual
from pictures import Pictures
from table import print_table

TURNS = 5
SPEC = OptimizerSpec(name="sgd", lr=0.01, momentum=0.9)


def plain_loop(task: Pictures, sizes: list[int], num_updates: int) -> float:
    """Gradients per second of the loop anybody would write, for batches of these sizes and so many updates."""
    model, samples = task.model(), task.train_samples()
    optimizer = SPEC.build(model.parameters())
    order = Permutations(len(samples), 0)
    per_update = max(1, round(len(sizes) / num_updates))
    position = 0
    start = time.process_time()
    for index, size in enumerate(sizes, 1):
        inputs, targets = samples.pick(order.indices(position, size))
        position += size
        loss = task.loss(model(inputs), targets)
        loss.backward()
        if index % per_update == 0:
            optimizer.step()
            optimizer.zero_grad()
        loss.item()
    return len(sizes) / (time.process_time() - start)


def virtual(task: Pictures, batch: int, gradients: int, algorithm: str) -> tuple[float, list[int], int]:
    """Gradients per second of the virtual engine, its start and its records included; their sizes; the updates."""
    samples = gradients * batch
    job = Job(
        algorithm=make_algorithm(algorithm),
        task=task,
        fleet=read_fleet("4,2,1,1"),
        optimizer=SPEC,
        batch_size=batch,
        samples=samples,
        eval_every=samples,
    )
    sizes: list[int] = []
    num_updates = 0

    def emit(event) -> None:
        nonlocal num_updates
        if event.kind == "compute":
            sizes.append(event.samples)
        elif event.kind == "update":
            num_updates += 1

    start = time.process_time()
    run_virtual(job, emit)
    return len(sizes) / (time.process_time() - start), sizes, num_updates


def turn(task: Pictures, batch: int, gradients: int, algorithm: str) -> tuple[float, float]:
    """Gradients per second of the plain loop and of the virtual engine."""
    ours, sizes, num_updates = virtual(task, batch, gradients, algorithm)
    return plain_loop(task, sizes, num_updates), ours


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="mlp,lenet,resnet20", help="which, with commas between")
    parser.add_argument("--turns", type=int, default=TURNS)
    options = parser.parse_args()
    torch.set_num_threads(1)  # two threads on two cores that do other things, too, make times jump
    rows = []
    for task, batch, gradients in (
        (Pictures("mlp", (1, 28, 28)), 32, 1500),
        (Pictures("mlp", (1, 28, 28)), 128, 800),
        (Pictures("lenet", (1, 28, 28)), 32, 400),
        (Pictures("lenet", (1, 28, 28)), 128, 60),
        (Pictures("resnet20", (3, 32, 32)), 32, 12),
    ):
        if task.model_name not in options.models.split(","):
            continue
        for algorithm in ("sync", "async", "stale", "balanced"):
            turns = [turn(task, batch, gradients, algorithm) for _ in range(options.turns)]
            plain, ours = (statistics.median(column) for column in zip(*turns, strict=True))
            ratio = statistics.median(ours / plain for plain, ours in turns)
            rows.append((task.model_name, f"{batch}", algorithm, f"{plain:,.0f}", f"{ours:,.0f}", f"{ratio:.3f}"))
    heads = ("model", "batch", "algorithm", "plain loop, gradients/s", "virtual engine, gradients/s", "ratio")
    print_table(heads, rows)


if __name__ == "__main__":
    main()
