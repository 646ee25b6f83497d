"""Parameter servers: how fast a push and a pull are beside gloo's bare transfers, and whether all get their turn.

    python benchmarks/servers.py

Round trip: a gradient of 11 M float32 goes to a server process and the parameters come back, through the engine's own
messages (header, pieces, CURVE encryption, checks); gloo sends and receives the same bytes between the same two
processes, in turns. Fairness: eight workers at full speed push to one server as often as they can.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from ownpace import make_algorithm
from ownpace.core.contract.values import Gradient, Parameters, Shard
from ownpace.core.learning.optimizer import OptimizerSpec
from ownpace.engines import ENGINES, Job
from ownpace.engines.memory import keep_large_blocks
from ownpace.engines.process.meet.connection import Connection
from ownpace.engines.process.meet.rendezvous import LOOPBACK, Rendezvous, local_store
from ownpace.engines.process.talk.run_key import RunKey
from ownpace.engines.process.talk.wire import Limits, Packet, unpack
from ownpace.fleet import full_speed
from pictures import Pictures
from table import print_table

VALUES, TURNS = 11_000_000, 12


def main() -> None:
    ours, gloo = round_trips()
    ratios = [b / a for a, b in zip(ours, gloo, strict=True)]
    nbytes = 2 * VALUES * 4
    rows = [
        ("gloo, send and receive", f"{statistics.median(gloo) * 1000:.0f} ms", gigabytes(nbytes, gloo), "1"),
        ("ownpace, push and pull", f"{statistics.median(ours) * 1000:.0f} ms", gigabytes(nbytes, ours),
         f"{statistics.median(ratios):.2f}"),
    ]  # fmt: skip
    print_table((f"{VALUES:,} float32 there and back", "time", "GB/s", "ratio"), rows)
    print()
    served = fairness()
    share = min(served.values()) / max(served.values())
    print_table(("eight workers on one server", "slowest / fastest"), [(str(sorted(served.values())), f"{share:.2f}")])


def gigabytes(nbytes: int, times: list[float]) -> str:
    return f"{nbytes / statistics.median(times) / 1e9:.2f}"


def round_trips() -> tuple[list[float], list[float]]:
    """Seconds of each round trip, ours and gloo's in turns; the first is left out."""
    store, port = local_store()
    rendezvous = Rendezvous(LOOPBACK, port, "bench", RunKey.new().secret, LOOPBACK)
    server = multiprocessing.get_context("forkserver").Process(target=serve, args=(rendezvous,))
    server.start()
    torch.set_num_threads(1)
    keep_large_blocks()
    connection = Connection("worker", rendezvous)
    channel = connect(0, connection)
    values = torch.randn(VALUES)
    ours, gloo = [], []
    for _ in range(TURNS + 1):
        start = time.perf_counter()
        connection.mailbox.send("server", Packet(Gradient(values, 1, (0,))))
        answer = receive(connection)
        ours.append(time.perf_counter() - start)
        assert isinstance(answer.body, Parameters)
        start = time.perf_counter()
        channel.send([values], 1, 0).wait()
        channel.recv([values], 1, 1).wait()
        gloo.append(time.perf_counter() - start)
    server.join()
    connection.mailbox.close(now=True)
    del store
    return ours[1:], gloo[1:]


def serve(rendezvous: Rendezvous) -> None:
    torch.set_num_threads(1)
    keep_large_blocks()
    connection = Connection("server", rendezvous)
    channel = connect(1, connection)
    values = torch.randn(VALUES)
    for _ in range(TURNS + 1):
        assert isinstance(receive(connection).body, Gradient)
        connection.mailbox.send("worker", Packet(Parameters(values, 1, Shard(0, 0, VALUES))))
        channel.recv([values], 0, 0).wait()
        channel.send([values], 0, 1).wait()
    connection.mailbox.close()


def connect(rank: int, connection: Connection) -> Any:
    """A bare process group of gloo's between the two."""
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=LOOPBACK)]
    options._threads = 2
    return dist.ProcessGroupGloo(dist.PrefixStore("pair", connection.store), rank, 2, options)


def receive(connection: Connection) -> Packet:
    arrived = connection.mailbox.receive()
    assert arrived is not None
    return unpack(arrived[1], Limits((Shard(0, 0, VALUES),), VALUES))


def fairness() -> dict[str, int]:
    """Samples that each of eight workers got its server to take."""
    events: list[Any] = []
    job = Job(
        algorithm=make_algorithm("async"),
        task=Pictures("mlp", (1, 28, 28)),
        fleet=full_speed(8),
        optimizer=OptimizerSpec(lr=0.001),
        batch_size=8,
        seconds=6.0,
        eval_every=10**9,
        detail=False,
    )
    ENGINES["process"](replace(job), events.append, None)
    return {name: tally.samples for name, tally in events[-1].sums.workers.items()}


if __name__ == "__main__":
    assert dist.is_available()
    main()
