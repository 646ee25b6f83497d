"""Who gets to an accuracy first: ownpace and its peers on the same work, in one run.

    python benchmarks/bench_peers.py --torchft torchft/bin/python --hivemind hivemind/bin/python --kept peers.jsonl

Four processes with prescribed paces. With the first seed every system runs at several learning rates, with further
seeds at the one that was best. Environments for the others are made as in peers/README.md. All go through sockets,
ownpace too (OWNPACE_SUMS): these four processes stand for four machines, which have no memory in common. Each run has a
network namespace of its own, so it needs root; on the fleet `slow-link` (4:2:1:1) each worker has 100 Mbit/s: loopback
carries as much as four such links together (tc), in packets of 1,500 bytes. `--lanes 4` runs four side by side, each on
cores of its own. What has been run is kept and not run again.
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
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ownpace.fleet.presets import PRESETS
from shares import free_port
from table import print_table

HERE = Path(__file__).parent
BATCH = 64
FLEETS: dict[str, list[float]] = {
    "drift": [3000.0, 3000.0, 2000.0, 2000.0],
    "slow-link": [4000.0, 2000.0, 1000.0, 1000.0],
    "steep": [8000.0, 4000.0, 2000.0, 1000.0],
    "mild": [3000.0, 3000.0, 1500.0, 1500.0],
    "equal": [2000.0] * 4,
}
TARGETS = {"mnist": (0.95, 0.96, 0.97), "fashion-mnist": (0.82, 0.84, 0.86)}
RATES = (0.05, 0.1, 0.2)
LINK_MBIT = 100
"""Of each worker on the slow link."""


@dataclass(frozen=True)
class Entry:
    """A system as it takes part."""

    system: str
    options: dict[str, Any] = field(default_factory=dict)
    rates: tuple[float, ...] = RATES

    @property
    def label(self) -> str:
        own = " ".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.system} {own}".strip()


ENTRIES = [
    Entry("ddp"),
    Entry("ddp-split"),
    Entry("torchft-ddp"),
    Entry("torchft-diloco", {"steps": 16, "outer_lr": 1.0, "outer_momentum": 0.0}),
    Entry("hivemind", {"target": 16384, "matchmaking": 1.0}),
    Entry("ownpace-sync"),
    Entry("ownpace-balanced"),
    Entry("ownpace-pace", rates=(0.025, 0.05, 0.1)),
    Entry("ownpace-stride"),
]
Run = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torchft", help="the Python of an environment that has it; none: left out")
    parser.add_argument("--hivemind", help="likewise")
    parser.add_argument("--fleets", default=",".join(FLEETS))
    parser.add_argument("--data", default="mnist,fashion-mnist")
    parser.add_argument("--systems", default=",".join(entry.system for entry in ENTRIES))
    parser.add_argument("--rates", default="", help="instead of each system's own, as in 0.05,0.1,0.2")
    parser.add_argument("--samples", type=int, default=60_000, help="of all workers together, the length of a schedule")
    parser.add_argument("--seeds", type=int, default=3, help="all but the first at each system's best rate alone")
    parser.add_argument("--lanes", type=int, default=1, help="races side by side, each on its part of the cores")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing after so many")
    parser.add_argument("--kept", type=Path, default=Path("peers.jsonl"))
    Racing(parser.parse_args()).run()


class Racing:
    """All runs, handed out to the lanes in order."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._until = time.monotonic() + options.seconds
        kept = options.kept
        self._known: list[Run] = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
        self._jobs = self._all_jobs()
        self._lock = threading.Lock()

    def run(self) -> None:
        """Run everything, and print what is known then."""
        lanes = self._options.lanes
        cores = sorted(os.sched_getaffinity(0))
        each = len(cores) // lanes
        threads = [
            threading.Thread(target=self._lane, args=(cores[lane * each : (lane + 1) * each],)) for lane in range(lanes)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        show(self._known)

    def _all_jobs(self) -> Iterator[Run]:
        """In this order, so that one that is broken off has whole comparisons. Rates are chosen as late as possible."""
        options = self._options
        there = {"torchft": options.torchft, "hivemind": options.hivemind}
        entries = [entry for entry in ENTRIES if entry.system in options.systems.split(",")]
        entries = [entry for entry in entries if there.get(entry.system.split("-")[0], "yes")]
        done = {name_of(each) for each in self._known}
        for data in options.data.split(","):
            for seed in range(options.seeds):
                for fleet in options.fleets.split(","):
                    for entry in entries:
                        own = {"system": entry.system, "options": entry.options, "label": entry.label}
                        job = {**own, "fleet": fleet, "data": data, "seed": seed, "samples": options.samples}
                        for rate in self._rates(entry, job):
                            if name_of({**job, "lr": rate}) not in done:
                                yield {**job, "lr": rate}

    def _rates(self, entry: Entry, job: Run) -> Sequence[float]:
        if job["seed"] == 0:
            return [float(rate) for rate in self._options.rates.split(",")] if self._options.rates else entry.rates
        runs = [each for each in self._known if each["seed"] == 0 and all(each[key] == job[key] for key in SAME)]
        return [best(runs)] if runs else []

    def _lane(self, cores: Sequence[int]) -> None:
        while True:
            with self._lock:
                job = next(self._jobs, None)
            if job is None or time.monotonic() > self._until:
                return
            try:
                found = {**job, **race(self._options, job, cores)}
            except (subprocess.TimeoutExpired, FileNotFoundError):
                print(f"{name_of(job)} came to no end", file=sys.stderr, flush=True)
                continue
            with self._lock:
                self._known.append(found)
                with self._options.kept.open("a") as kept:
                    kept.write(json.dumps(found) + "\n")
            shown = ("data", "fleet", "system", "lr", "seed", "samples_per_s", "accuracy")
            print({key: found[key] for key in shown}, flush=True)


NAMES = ("label", "lr", "fleet", "data", "seed", "samples")
SAME = ("label", "fleet", "data", "samples")


def name_of(job: Run) -> tuple[Any, ...]:
    return tuple(job[key] for key in NAMES)


def best(runs: Sequence[Run]) -> float:
    """The rate of the run that was first at the second accuracy, or at the first one if none came so far."""

    def order(run: Run) -> tuple[float, ...]:
        times = [reached(run["curve"], target) for target in TARGETS[run["data"]]]
        return (*(float("inf") if t is None else t for t in (times[1], times[0])), -run["accuracy"])

    return float(min(runs, key=order)["lr"])


def race(options: argparse.Namespace, job: Run, cores: Sequence[int]) -> Run:
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
            "every_s": 0.1,
            "lighthouse": f"http://127.0.0.1:{port}",
        }
        path = Path(folder) / "setting.json"
        path.write_text(json.dumps(setting))
        family = job["system"].split("-")[0]
        python = {"torchft": options.torchft, "hivemind": options.hivemind}.get(family) or sys.executable
        # As on a network of cables: loopback's packets of 64 KiB are larger than tbf's bucket, which drops such.
        lines = [f"export MASTER_PORT={port}", "ip link set lo mtu 1500 up"]
        if job["fleet"] == "slow-link":
            rate = f"{LINK_MBIT * len(paces)}mbit"
            lines.append(f"tc qdisc add dev lo root tbf rate {rate} burst 256kb latency 400ms")
        if family == "torchft":
            lighthouse = Path(python).parent / "torchft_lighthouse"
            lines.append(f"{lighthouse} --bind 127.0.0.1:{port} --min_replicas {len(paces)} --join_timeout_ms 1000 &")
        worker = f"{python} {HERE / 'peers' / 'racer.py'} {path}"
        lines += [f"RANK={rank} LOCAL_RANK={rank} {worker} {rank} & w{rank}=$!" for rank in range(len(paces))]
        lines += [f"wait $w{rank} || exit" for rank in range(len(paces))]
        # Eight times as long as machines that never wait: DDP over the slow link needs six times as long.
        patience_s = 90 + 8 * job["samples"] / limit(job["fleet"])
        run(["unshare", "-n", "sh", "-c", "\n".join(lines)], len(paces), cores, patience_s)
        found = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(len(paces))]
    seconds = max(each["seconds"] for each in found)
    curve = found[0]["curve"]
    return {
        "seconds": seconds,
        "samples_per_s": sum(each["samples"] for each in found) / seconds,
        "accuracy": curve[-1][1],
        "curve": [[round(t, 3), round(accuracy, 4)] for t, accuracy in curve],
    }


def run(command: list[str], world: int, cores: Sequence[int], patience_s: float) -> None:
    """To its end, in a group of its own: what it leaves behind is ended with it."""
    own = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1", "RUST_LOG": "error"}
    own |= {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "LOGLEVEL": "ERROR", "TORCHFT_LOG": "error"}
    own |= {"OWNPACE_SUMS": "sockets"}
    command = ["taskset", "-c", ",".join(map(str, cores)), *command]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, env={**os.environ, **own}, stdout=log, stderr=log, start_new_session=True)
        code: int | None = None
        try:
            code = process.wait(patience_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            time.sleep(0.5)  # what a system's daemons still do must not be the next one's load
            if code != 0:
                log.seek(0)
                print(log.read()[-2000:].decode(errors="replace"), file=sys.stderr, flush=True)


def limit(fleet: str) -> float:
    """Samples/s of machines that never wait."""
    slow = [sum((end - start) * (1 - 1 / factor) for start, end, factor in each) for each in slowdowns(fleet)]
    ends = [each[-1][1] for each in slowdowns(fleet) if each]
    return sum(pace * (1 - lost / max(ends, default=1.0)) for pace, lost in zip(FLEETS[fleet], slow, strict=True))


def slowdowns(fleet: str) -> list[list[tuple[float, float, float]]]:
    """Of each worker: from when to when, and how many times slower."""
    if fleet != "drift":
        return [[] for _ in FLEETS[fleet]]
    return [
        [(each.from_s, each.until_s, each.factor) for each in machine.slowdown] for machine in PRESETS[fleet][1].machine
    ]


def show(known: Sequence[Run]) -> None:
    """A table for each fleet and data set: every system at its best rate, with the spread over seeds."""
    groups: dict[tuple[str, str], dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for each in known:
        groups[each["data"], each["fleet"]][each["label"]].append(each)
    for (data, fleet), systems in groups.items():
        print(f"\n### {data}, {fleet}\n")
        to = [f"s to {target:.0%}" for target in TARGETS[data]]
        rows, chosen = [], {}
        for label, everything in systems.items():
            rate = best([each for each in everything if each["seed"] == 0])
            runs = chosen[label] = [each for each in everything if each["lr"] == rate]
            speed = statistics.mean(each["samples_per_s"] for each in runs)
            accuracy = statistics.mean(each["accuracy"] for each in runs)
            times = [brief([reached(each["curve"], target) for each in runs]) for target in TARGETS[data]]
            counts = f"{rate:g} of {len({each['lr'] for each in everything})}", str(len(runs))
            rows.append([label, *counts, f"{speed:,.0f}", f"{speed / limit(fleet):.0%}", f"{accuracy:.1%}", *times])
        print_table(["system", "rate", "seeds", "samples/s", "of the limit", "at the end", *to], rows)
        print()
        say_lead(chosen, TARGETS[data])


def say_lead(systems: dict[str, list[Run]], targets: Sequence[float]) -> None:
    """How many times sooner the default is than the first of the others."""
    for target in targets:
        means = {label: mean_of([reached(each["curve"], target) for each in runs]) for label, runs in systems.items()}
        others = {label: t for label, t in means.items() if t is not None and not label.startswith("ownpace")}
        ours = means.get("ownpace-stride")
        if ours is not None and others:
            first = min(others, key=lambda label: others[label])
            print(f"{target:.0%}: {others[first] / ours:.2f} times as soon as {first}")


def mean_of(times: Sequence[float | None]) -> float | None:
    there = [t for t in times if t is not None]
    return statistics.mean(there) if there and len(there) == len(times) else None


def reached(curve: Sequence[Sequence[float]], target: float) -> float | None:
    """When two snapshots in a row were there: no win by one lucky crossing."""
    pairs = zip(curve, [*curve[1:], curve[-1]], strict=True)
    return next((t for (t, first), (_, second) in pairs if min(first, second) >= target), None)


def brief(times: Sequence[float | None]) -> str:
    there = [t for t in times if t is not None]
    if len(there) < len(times):
        return f"{len(there)} of {len(times)}"
    return f"{statistics.mean(there):.1f} ({min(there):.1f}–{max(there):.1f})"


if __name__ == "__main__":
    main()
