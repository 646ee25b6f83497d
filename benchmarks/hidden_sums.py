"""How much of a sum is hidden behind computing, on processes over a slow link, next to its prediction.

    python benchmarks/hidden_sums.py [--algorithms balanced,sync,stride] [--loads 0.25,0.5,1] [--seconds 80]

Four processes with paces 4:2:1:1 train a net of twelve equal layers (17 MB). Sums go through sockets, in a network
namespace whose loopback carries as much as four links together (tc, in packets of 1,500 bytes): a ring's sum takes
`load` times as long as a machine of mean pace takes for its batch. Needs root, `ip` and `tc`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from layers import EqualLayers
from ownpace import make_algorithm
from ownpace.core.contract.events import Event
from ownpace.engines import Job, run_process, run_virtual
from ownpace.fleet import Fleet, Network, paces
from ownpace.report import summarize
from table import print_table

PACES = (40.0, 20.0, 10.0, 10.0)
BATCH = 32
BATCH_S = BATCH * len(PACES) / sum(PACES)
"""Of a machine of mean pace; and of every machine, where batches are divided by pace."""
LAYERS, WIDTH = 12, 600
BYTES = 4 * LAYERS * WIDTH * WIDTH
WIRE = 1448 / 1514
"""What is left of a packet for data: Ethernet, IP and TCP write headers, too."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithms", default="balanced,sync,stride")
    parser.add_argument("--loads", default="0.25,0.5,1")
    parser.add_argument("--seconds", type=float, default=80.0, help="of computing, of each run")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        algorithm, load = options.measure.split(",")
        print(json.dumps(share("process", algorithm, float(load), options.seconds)))
        return
    rows = []
    for algorithm in options.algorithms.split(","):
        for load in map(float, options.loads.split(",")):
            print(f"{algorithm}, a sum takes {load:g} of a batch …", file=sys.stderr)
            predicted = share("virtual", algorithm, load, options.seconds)
            measured = over_slow_link(algorithm, load, options.seconds)
            rows.append((algorithm, f"{load:g}", f"{predicted:.1%}", f"{measured:.1%}"))
    print_table(("algorithm", "a sum takes, of a batch", "of the limit, predicted", "measured"), rows)


def link(load: float) -> float:
    """Bytes per second of each machine's link, with which a ring's sum takes so long."""
    return 2 * (len(PACES) - 1) / len(PACES) * BYTES / (load * BATCH_S)


def share(engine: str, algorithm: str, load: float, seconds: float) -> float:
    """Samples per second over the sum of the four paces."""
    fleet: Fleet = paces(*PACES, jitter=0.0)
    if engine == "virtual":
        fleet = replace(fleet, network=Network(bandwidth_bytes_per_s=link(load), latency_s=1e-4))
    job = Job(
        algorithm=make_algorithm(algorithm),
        task=EqualLayers(layers=LAYERS, width=WIDTH),
        fleet=fleet,
        batch_size=BATCH,
        samples=round(seconds * sum(PACES)),
        eval_every=10**9,
        timing_only=engine == "virtual",
    )
    events: list[Event] = []
    (run_virtual if engine == "virtual" else run_process)(job, events.append, None)
    return summarize(events).samples_per_s / sum(PACES)


def over_slow_link(algorithm: str, load: float, seconds: float) -> float:
    """The same on processes, in a namespace of their own."""
    rate = 8 * len(PACES) * link(load) / WIRE
    with tempfile.TemporaryFile("w+") as found:
        lines = [
            "ip link set lo mtu 1500 up",
            f"tc qdisc add dev lo root tbf rate {rate:.0f}bit burst 1mb latency 400ms",
            f"exec {sys.executable} {Path(__file__)} --measure {algorithm},{load} --seconds {seconds}",
        ]
        own = {"OWNPACE_SUMS": "sockets", "OMP_NUM_THREADS": "1"}
        subprocess.run(
            ["unshare", "-n", "sh", "-ec", "\n".join(lines)], env={**os.environ, **own}, stdout=found, check=True
        )
        found.seek(0)
        return float(json.loads(found.read().splitlines()[-1]))


if __name__ == "__main__":
    main()
