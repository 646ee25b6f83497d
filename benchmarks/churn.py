"""Workers die and come back all the time: what a run keeps of it that it should not.

    python benchmarks/churn.py [--minutes 30] [--workers 8] [--every 5] [--algorithms pace,async] [--json FILE]

`ownpace train --on-failure restart` on processes of this machine, at prescribed slow paces; every few seconds one of
the workers is killed with SIGKILL, now and then a server. Once a minute it is written down how much memory the
launcher and those nodes that were never killed have, their open files and threads, and how much memory without a name
they have mapped, through which gradients are summed; all processes of the run, all such memory, sockets, and files in
/dev/shm and in the folder for temporary files. A line is fitted through each after the first tenth; what grows by more
in an hour than its limit is a leak, and the exit code says so.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ownpace.core.contract.errors import InputError
from ownpace.core.contract.event_file import read_events
from ownpace.core.contract.events import End, Fault, Generation
from table import print_table

MARK = "OWNPACE_CHURN_MARK"
LIMITS = {"MB": 30.0, "files": 20.0, "threads": 20.0, "processes": 6.0, "sockets": 30.0, "mappings": 20.0}
"""What may be added in an hour, by the unit."""


@dataclass
class Series:
    """One quantity over time."""

    unit: str
    times: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, now: float, value: float) -> None:
        self.times.append(now)
        self.values.append(value)

    def per_hour(self) -> float:
        """The slope of the line that fits best, once the run has settled."""
        settled = [(t, v) for t, v in zip(self.times, self.values, strict=True) if t >= self.times[-1] / 10]
        mean_t = sum(t for t, _ in settled) / len(settled)
        mean_v = sum(v for _, v in settled) / len(settled)
        spread = sum((t - mean_t) ** 2 for t, _ in settled)
        return 3600 * sum((t - mean_t) * (v - mean_v) for t, v in settled) / spread if spread else 0.0


class Churned:
    """One run that is never left in peace."""

    def __init__(self, algorithm: str, workers: int, folder: Path) -> None:
        self.out = folder / "run"
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self._workers = workers
        self._spared: dict[str, int] = {}
        self._killed: dict[str, float] = {}
        self.left: list[int] = []
        """Processes that had not ended a while after the run."""
        self._mark = f"{MARK}={os.getpid()}-{algorithm}"
        fleet = ",".join(str(0.04 + 0.01 * (number % 3)) for number in range(workers))  # thousands of samples a second
        command = [sys.executable, "-m", "ownpace", "train", "--engine", "process", "--algorithm", algorithm]
        command += ["--fleet", fleet, "--task", "ownpace.testing.blobs:Blobs", "--batch-size", "8", "--lr", "0.01"]
        command += ["--on-failure", "restart", "--checkpoint-every", "2000", "--eval-every", "2000", "--log-files"]
        command += ["--epochs", "1000000", "--out", str(self.out)]
        name, _, value = self._mark.partition("=")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(self.temporary), name: value}
        with (folder / "output.txt").open("w") as output:
            self.process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)

    def trains(self) -> bool:
        events = self.out / "events.jsonl"
        return events.exists() and '"kind":"update"' in events.read_text(encoding="utf-8")

    def processes(self) -> list[int]:
        found = []
        for path in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if path.name.isdecimal() and self._mark.encode() in (path / "environ").read_bytes().split(b"\0"):
                    found.append(int(path.name))
        return found

    def nodes(self) -> dict[str, int]:
        """The process of each node, by the log that it writes."""
        found = {}
        for pid in self.processes():
            with contextlib.suppress(OSError):
                for link in Path(f"/proc/{pid}/fd").iterdir():
                    target = link.readlink()
                    if target.parent.name == "logs":
                        found[target.stem] = pid
        return found

    def missing(self) -> int:
        """How many workers take no part in the latest generation that has started."""
        lines = (self.out / "logs" / "hub.log").read_text(encoding="utf-8").splitlines()
        latest = next((line for line in reversed(lines) if "Start to [" in line), "")
        return self._workers - latest.count("'worker-")

    def sample(self, series: Callable[[str, str], Series], now: float) -> None:
        """Write down what the run holds now."""
        pids, nodes = self.processes(), self.nodes()
        spared = {name: pid for name, pid in nodes.items() if self._spared.setdefault(name, pid) == pid}
        watched = {"launcher": self.process.pid}
        # The oldest: those that have lived through most.
        watched |= {name: pid for name, pid in sorted(spared.items()) if name in ("worker-0", "server-0")}
        for name, pid in watched.items():
            with contextlib.suppress(OSError):
                status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
                series(f"{name}, memory", "MB").add(now, int(status["VmRSS"].split()[0]) / 1024)
                series(f"{name}, threads", "threads").add(now, int(status["Threads"]))
                series(f"{name}, open files", "files").add(now, len(os.listdir(f"/proc/{pid}/fd")))  # noqa: PTH208
                series(f"{name}, memory to share", "MB").add(now, sum(_shared(pid).values()) / 2**20)
                series(f"{name}, its mappings", "mappings").add(now, len(_shared(pid)))
                series(f"{name}, its open files", "files").add(now, _links(pid, "/memfd:"))
        series("processes", "processes").add(now, len(pids))
        shared = {memory: nbytes for pid in pids for memory, nbytes in _shared(pid).items()}
        series("memory to share", "MB").add(now, sum(shared.values()) / 2**20)
        series("sockets", "sockets").add(now, sum(_links(pid, "socket:") for pid in pids))
        series("temporary files", "files").add(now, sum(1 for _ in self.temporary.rglob("*")))
        # torch's have the process in their name; other programs of this machine have files there, too.
        named = [path.name for path in Path("/dev/shm").iterdir()]
        own = sum("ownpace" in name or any(f"_{pid}_" in name for pid in pids) for name in named)
        series("files in /dev/shm", "files").add(now, own)

    def kill(self, choice: random.Random) -> str | None:
        """Kill the worker that has lived longest, except the first; one time in ten, a server, if there is one.

        One that dies young again and again would be started again later and later, and be missing most of the time.
        """
        nodes = self.nodes()
        servers = [name for name in nodes if name.startswith("server")]
        names = [name for name in nodes if name.startswith("worker") and name != "worker-0"]
        # On a busy machine starting takes long: the others would all be killed before they take part.
        if len(names) < 2 or self.missing() > 2:
            return None
        name = min(names, key=lambda name: (self._killed.get(name, 0.0), name))
        if servers and choice.random() < 0.1:
            name = choice.choice(sorted(servers))
        self._killed[name] = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            os.kill(nodes[name], signal.SIGKILL)
        return name

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(120)
        deadline = time.monotonic() + 10
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        self.left = left
        for pid in left:
            print(f"left: {pid} {Path(f'/proc/{pid}/cmdline').read_bytes()[:200]!r}", flush=True)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return self.process.wait()


def _links(pid: int, kind: str) -> int:
    """Open files of a process that are no files of a file system, of one kind."""
    count = 0
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                count += str(link.readlink()).startswith(kind)
    return count


def _shared(pid: int) -> dict[str, int]:
    """The memory without a name that a process has mapped: the bytes of each piece."""
    found: dict[str, int] = {}
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines():
            bounds, _, _, _, inode, *name = line.split(maxsplit=5)
            if name and name[0].startswith("/memfd:ownpace"):
                begin, end = (int(bound, 16) for bound in bounds.split("-"))
                found[inode] = found.get(inode, 0) + end - begin
    return found


def churn(algorithm: str, options: argparse.Namespace, folder: Path) -> tuple[dict[str, Series], dict[str, int]]:
    """Trouble one run for so long; returns what it held, and what happened."""
    run = Churned(algorithm, options.workers, folder)
    found: dict[str, Series] = {}

    def series(name: str, unit: str) -> Series:
        return found.setdefault(name, Series(unit))

    choice, kills = random.Random(0), 0
    try:
        while run.process.poll() is None and not run.trains():
            time.sleep(0.5)
        begun = next_sample = time.monotonic()
        end = begun + 60 * options.minutes
        while (now := time.monotonic()) < end and run.process.poll() is None:
            if now >= next_sample:
                run.sample(series, now - begun)
                shown = ", ".join(f"{name} {each.values[-1]:.0f}" for name, each in found.items())
                print(f"{(now - begun) / 60:5.1f} min, {kills} kills: {shown}", flush=True)
                next_sample = now + min(60.0, 6 * options.minutes)
            kills += run.kill(choice) is not None
            time.sleep(options.every * choice.uniform(0.5, 1.5))
        alive = run.process.poll() is None
    finally:
        code = run.end()
    counts = {"kills": kills, "exit code": code, "ended by itself": int(not alive), "processes left": len(run.left)}
    return found, counts | told_by(run.out)


def told_by(out: Path) -> dict[str, int]:
    """What the run's own record says."""
    with contextlib.suppress(OSError, InputError):
        events = list(read_events(out / "events.jsonl"))
        borders = [event for event in events if isinstance(event, Generation)]
        sums = [event.sums for event in events if isinstance(event, End)]
        return {
            "deaths": sum(isinstance(event, Fault) for event in events),
            "generations": len(borders),
            "joins": sum(event.why == "join" for event in borders),
            "updates": sums[-1].updates if sums else 0,
        }
    return {}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two kills, on average")
    parser.add_argument("--algorithms", default="pace,async", help="each for so long")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    leaks, kept = 0, {}
    for algorithm in options.algorithms.split(","):
        rows = []
        with tempfile.TemporaryDirectory(prefix="ownpace-churn-") as name:
            found, counts = churn(algorithm, options, Path(name))
        print(f"{algorithm}: " + ", ".join(f"{what} {count}" for what, count in counts.items()), flush=True)
        kept[algorithm] = {"counts": counts, "series": {what: vars(each) for what, each in found.items()}}
        for what, each in found.items():
            grows = each.per_hour()
            is_leak = grows > LIMITS[each.unit]
            leaks += is_leak
            first, last = each.values[0], each.values[-1]
            verdict = "grows" if is_leak else "flat"
            rows.append(
                (algorithm, what, f"{first:.0f}", f"{max(each.values):.0f}", f"{last:.0f}", f"{grows:+.1f}", verdict)
            )
        leaks += counts["processes left"] + counts["ended by itself"]
        print_table(("algorithm", "", "first", "most", "last", "an hour", ""), rows)
    if options.json is not None:
        options.json.write_text(json.dumps(kept), encoding="utf-8")
    return int(leaks > 0)


if __name__ == "__main__":
    sys.exit(main())
