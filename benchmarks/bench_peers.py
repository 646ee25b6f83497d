"""Who gets to an accuracy first: ownpace and its peers on the same work, in turns in one run.

    python benchmarks/bench_peers.py --torchft torchft/bin/python --hivemind hivemind/bin/python --kept peers.jsonl

Four processes with prescribed paces, one after the other for each system, all systems in each round. Environments for
the others are made as in peers/README.md. All go through sockets, ownpace too (OWNPACE_SUMS): these four processes
stand for four machines, which have no memory in common. The fleet `slow-link` is 4:2:1:1 with 100 Mbit/s for all of
them together: it needs root, for a network namespace whose loopback is shaped by tc. What has been run is kept and
not run again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from against_ddp import free_port
from ownpace.fleet.presets import PRESETS
from table import print_table

HERE = Path(__file__).parent
BATCH = 64
FLEETS: dict[str, list[float]] = {
    "equal": [2000.0] * 4,
    "mild": [3000.0, 3000.0, 1500.0, 1500.0],
    "steep": [8000.0, 4000.0, 2000.0, 1000.0],
    "drift": [3000.0, 3000.0, 2000.0, 2000.0],
    "slow-link": [4000.0, 2000.0, 1000.0, 1000.0],
}
TARGETS = {"mnist": (0.95, 0.96, 0.97), "fashion-mnist": (0.84, 0.86, 0.87)}
PATIENCE_S = 120.0


@dataclass(frozen=True)
class Entry:
    """A system as it takes part."""

    system: str
    lr: float
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        own = " ".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.system} {own}".strip()


# Rates were chosen on `steep` from powers of two times 0.05, each between two that were slower.
ENTRIES = [
    Entry("ddp", 0.1),
    Entry("ddp-split", 0.1),
    Entry("torchft-ddp", 0.1),
    Entry("torchft-diloco", 0.1, {"steps": 16, "outer_lr": 1.0, "outer_momentum": 0.0}),
    Entry("hivemind", 0.1, {"target": 16384, "matchmaking": 1.0}),
    Entry("ownpace-sync", 0.1),
    Entry("ownpace-balanced", 0.1),
    Entry("ownpace-pace", 0.05),
    Entry("ownpace-stride", 0.1),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torchft", help="the Python of an environment that has it; none: left out")
    parser.add_argument("--hivemind", help="likewise")
    parser.add_argument("--fleets", default=",".join(FLEETS))
    parser.add_argument("--data", default="mnist,fashion-mnist")
    parser.add_argument("--systems", default=",".join(entry.system for entry in ENTRIES))
    parser.add_argument("--lrs", default="", help="instead of each system's own rate, as in 0.05,0.1,0.2")
    parser.add_argument(
        "--samples", type=int, default=120_000, help="of all workers together, the length of a schedule"
    )
    parser.add_argument("--rounds", type=int, default=3, help="each with a seed of its own")
    parser.add_argument("--kept", type=Path, default=Path("peers.jsonl"))
    options = parser.parse_args()
    known = [json.loads(line) for line in options.kept.read_text().splitlines()] if options.kept.exists() else []
    done = {name_of(each) for each in known}
    for job in jobs(options):
        if name_of(job) not in done:
            found = {**job, **race(options, job)}
            known.append(found)
            with options.kept.open("a") as kept:
                kept.write(json.dumps(found) + "\n")
            print(
                {key: found[key] for key in ("fleet", "system", "lr", "seed", "samples_per_s", "accuracy")}, flush=True
            )
    show(known)


def jobs(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All runs, a round of everybody after the other, so that all have the same weather."""
    there = {"torchft": options.torchft, "hivemind": options.hivemind}
    entries = [entry for entry in ENTRIES if entry.system in options.systems.split(",")]
    entries = [entry for entry in entries if there.get(entry.system.split("-")[0], "yes")]
    return [
        {**asdict(entry), "label": entry.label, "fleet": fleet, "data": data, "seed": seed, "samples": options.samples}
        | ({"lr": float(lr)} if lr else {})
        for seed in range(options.rounds)
        for data in options.data.split(",")
        for fleet in options.fleets.split(",")
        for entry in entries
        for lr in options.lrs.split(",")
    ]


def name_of(job: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(job[key] for key in ("label", "lr", "fleet", "data", "seed", "samples"))


def race(options: argparse.Namespace, job: dict[str, Any]) -> dict[str, Any]:
    """One run of one system: four processes, and what rank 0 saw."""
    paces = FLEETS[job["fleet"]]
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        setting = {
            **job,
            "batch": BATCH,
            "paces": paces,
            "slowdowns": slowdowns(job["fleet"]),
            "folder": folder,
            "every_s": 0.25,
        }
        setting["lighthouse"] = f"http://127.0.0.1:{port}"
        path = Path(folder) / "setting.json"
        path.write_text(json.dumps(setting))
        family = job["system"].split("-")[0]
        python = {"torchft": options.torchft, "hivemind": options.hivemind}.get(family) or sys.executable
        lines = [f"export MASTER_PORT={port}", "ip link set lo up"]
        if job["fleet"] == "slow-link":
            lines.append("tc qdisc add dev lo root tbf rate 100mbit burst 64kb latency 400ms")
        if family == "torchft":
            lighthouse = Path(python).parent / "torchft_lighthouse"
            lines.append(f"{lighthouse} --bind 127.0.0.1:{port} --min_replicas {len(paces)} --join_timeout_ms 1000 &")
        worker = f"{python} {HERE / 'peers' / 'racer.py'} {path}"
        lines += [f"RANK={rank} LOCAL_RANK={rank} {worker} {rank} & w{rank}=$!" for rank in range(len(paces))]
        lines.append("wait " + " ".join(f"$w{rank}" for rank in range(len(paces))))
        run(["unshare", "-n", "sh", "-c", "\n".join(lines)], len(paces))
        found = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(len(paces))]
    seconds = max(each["seconds"] for each in found)
    curve = found[0]["curve"]
    return {
        "seconds": seconds,
        "samples_per_s": sum(each["samples"] for each in found) / seconds,
        "accuracy": curve[-1][1],
        "curve": curve,
    }


def run(command: list[str], world: int) -> None:
    """To its end, in a group of its own: what it leaves behind is ended with it."""
    own = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1", "RUST_LOG": "error"}
    own |= {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "LOGLEVEL": "ERROR", "TORCHFT_LOG": "error"}
    own |= {"OWNPACE_SUMS": "sockets"}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, env={**os.environ, **own}, stdout=log, stderr=log, start_new_session=True)
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            log.seek(0)
            print(log.read()[-2000:].decode(errors="replace"), file=sys.stderr)
            raise
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            time.sleep(0.5)  # what a system's daemons still do must not be the next one's load
        if process.returncode:
            log.seek(0)
            print(log.read()[-2000:].decode(errors="replace"), file=sys.stderr)


def slowdowns(fleet: str) -> list[list[tuple[float, float, float]]]:
    """Of each worker: from when to when, and how many times slower."""
    if fleet != "drift":
        return [[] for _ in FLEETS[fleet]]
    return [
        [(each.from_s, each.until_s, each.factor) for each in machine.slowdown] for machine in PRESETS[fleet][1].machine
    ]


def show(known: list[dict[str, Any]]) -> None:
    """A table for each fleet and data set: seconds to each accuracy, with the spread over seeds."""
    groups: dict[tuple[str, str], dict[tuple[str, float], list[dict[str, Any]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for each in known:
        groups[each["data"], each["fleet"]][each["label"], each["lr"]].append(each)
    for (data, fleet), entries in groups.items():
        print(f"\n### {data}, {fleet}\n")
        heads = ["system", "lr", "samples/s", "of the limit", "at the end", *(f"s to {t:.0%}" for t in TARGETS[data])]
        rows = []
        for (label, lr), runs in entries.items():
            speed = statistics.mean(each["samples_per_s"] for each in runs)
            accuracy = statistics.mean(each["accuracy"] for each in runs)
            times = [brief([reached(each["curve"], target) for each in runs]) for target in TARGETS[data]]
            share = f"{speed / sum(FLEETS[fleet]):.0%}"
            rows.append([label, f"{lr:g}", f"{speed:,.0f}", share, f"{accuracy:.1%}", *times])
        print_table(heads, rows)


def reached(curve: list[tuple[float, float]], target: float) -> float | None:
    """When two snapshots in a row were there: no win by one lucky crossing."""
    pairs = zip(curve, [*curve[1:], curve[-1]], strict=True)
    return next((t for (t, first), (_, second) in pairs if min(first, second) >= target), None)


def brief(times: list[float | None]) -> str:
    there = [t for t in times if t is not None]
    if len(there) < len(times):
        return f"{len(there)} of {len(times)}"
    return f"{statistics.mean(there):.1f} ({min(there):.1f}–{max(there):.1f})"


if __name__ == "__main__":
    main()
