"""What a run costs beside training: time to start, beside torchrun; memory, beside DistributedDataParallel.

    python benchmarks/overhead.py

Start: from the command to its end, of a run that trains next to nothing, with four workers; beside it, torchrun with
four processes that import torch, meet over gloo, sum one number and end. In turns; medians. Memory: the largest
resident set of a worker that trains ResNet-18 (11.2 M parameters), less that of the same with a tiny model, in copies
of the parameters; beside DistributedDataParallel's.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import ownpace
from pictures import Pictures
from shares import free_port
from table import print_table

TURNS = 3
TINY, LARGE = ("logistic", (1, 4, 4)), ("resnet18", (3, 32, 32))
WAYS = ("ddp", *ownpace.ALGORITHMS)


def main() -> None:
    if len(sys.argv) > 1:
        {"meet": meet, "train": train}[sys.argv[1]]()
        return
    start_up()
    print()
    memory()


def torchrun(count: int, *arguments: str) -> list[str]:
    port = str(free_port())
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        str(count),
        "--master-addr",
        "127.0.0.1",
    ]
    return [*command, "--master-port", port, __file__, *arguments]


def run(command: list[str]) -> tuple[float, str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    start = time.perf_counter()
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return time.perf_counter() - start, done.stdout


def start_up() -> None:
    times: dict[str, list[float]] = {"torchrun": [], "ownpace": []}
    with tempfile.TemporaryDirectory() as folder:
        ours = [sys.executable, "-m", "ownpace", "train", "--engine", "process", "--fleet", "x4", "--task", "quadratic"]
        ours += ["--samples", "128", "--no-detail", "--json", "--overwrite", "--out", str(Path(folder) / "run")]
        for _ in range(TURNS):
            times["torchrun"].append(run(torchrun(4, "meet"))[0])
            times["ownpace"].append(run(ours)[0])
    plain, ownpaces = statistics.median(times["torchrun"]), statistics.median(times["ownpace"])
    rows = [
        ("torchrun, four processes that meet", f"{plain:.2f} s", ""),
        ("ownpace train --engine process, four workers", f"{ownpaces:.2f} s", f"{ownpaces - plain:+.2f} s"),
    ]
    print_table(("from command to end", "time", "over torchrun"), rows)


def meet() -> None:
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()


def memory() -> None:
    nbytes = sum(p.nbytes for p in Pictures(*LARGE).model().parameters())
    peak: dict[tuple[str, str], dict[str, float]] = {}
    for way in WAYS:
        for model, shape in (TINY, LARGE):
            peak[way, model] = json.loads(run(torchrun(2, "train", way, model, json.dumps(shape)))[1].splitlines()[-1])
    rows = []
    for way in WAYS:
        copies = {rank: (peak[way, LARGE[0]][rank] - peak[way, TINY[0]][rank]) / nbytes for rank in peak[way, LARGE[0]]}
        base = (peak["ddp", LARGE[0]]["1"] - peak["ddp", TINY[0]]["1"]) / nbytes
        rows.append((way, *(f"{copies[rank]:.1f}" for rank in ("0", "1")), f"{copies['1'] - base:+.1f}"))
    print_table(("way", "copies, rank 0 (with the hub)", "copies, rank 1", "over DDP, rank 1"), rows)


def train() -> None:
    """Train a little, and print the largest resident set of both ranks."""
    way, model_name, shape = sys.argv[2], sys.argv[3], tuple(json.loads(sys.argv[4]))
    dist.init_process_group("gloo")
    task = Pictures(model_name, shape)
    if way == "ddp":
        model = DistributedDataParallel(task.model())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        for step in range(8):
            inputs, targets = task.train_samples().pick(torch.arange(4) + step)
            task.loss(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
    else:
        ownpace.train(
            algorithm=way, task=task, engine="process", fleet="x2", batch_size=4, samples=64, lr=0.001, momentum=0.9,
            eval_every=10**9, detail=False,
        )  # fmt: skip
    peaks: list[int] = [0, 0]
    dist.all_gather_object(peaks, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    if dist.get_rank() == 0:
        print(json.dumps(dict(enumerate(peaks))), flush=True)
    dist.barrier()
    os._exit(0)  # gloo's threads sometimes trip over a Python that is being taken down


if __name__ == "__main__":
    main()
