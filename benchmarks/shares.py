"""A script of ours in several processes under torchrun, each with its share of one GPU, which CUDA MPS gives out."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence


def is_rank() -> bool:
    """Whether this is one of those processes."""
    return "RANK" in os.environ


def run_ranks(
    script: str,
    arguments: Sequence[str],
    count: int,
    *,
    threads: int,
    patience_s: float | None = None,
    quiet: bool = False,
) -> None:
    """Run a script in so many processes; after `patience_s` they are ended."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(count)]
    command += ["--master-addr", "127.0.0.1", "--master-port", str(free_port()), script, *arguments]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": str(threads)}
    told = subprocess.DEVNULL if quiet else None
    process = subprocess.Popen(command, env=environment, stdout=told, stderr=told)
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.terminate()  # torchrun ends its processes, too
        process.wait(30)


def take_share(shares: str) -> None:
    """Let this process have its share, as in 40,20,10,10 percent; before it first uses the GPU."""
    if shares:
        os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = shares.split(",")[int(os.environ["RANK"])]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
