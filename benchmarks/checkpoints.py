"""What checkpoints cost, if there is one a minute: in samples per second and in seconds of computing.

    python benchmarks/checkpoints.py [seconds of a run] [seconds between checkpoints] [device]

Two workers at full speed, on processes of this machine, train ResNet-18 (11.2 M parameters) with Adam, so a checkpoint
has 134 MB: the least kind case, since little is computed between two of them. One run for each algorithm, in which time
with and without takes turns: from a checkpoint until halfway to the next, in which it is collected and written; and the
rest. What the first half lacks is what one checkpoint costs. Medians and ranges over the turns; checkpoints go to a
temporary folder: set TMPDIR to try a disk. With the defaults it takes about four minutes.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import threading
import time
from bisect import bisect_left
from pathlib import Path

import ownpace
from ownpace.core.contract.events import Event, Generation, Update
from pictures import Pictures
from table import print_table

ALGORITHMS = ("sync", "stride", "async")
RATE_S = 8.0
"""How long a first run shows how fast it is, for the caches, too."""
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 64.0
    every_s = float(sys.argv[2]) if len(sys.argv) > 2 else 14.0
    device = sys.argv[3] if len(sys.argv) > 3 else "cpu"
    rows = []
    for algorithm in ALGORITHMS:
        rate = run(algorithm, RATE_S, 0, device)[0].rate
        taken, size = run(algorithm, seconds, max(1, round(rate * every_s)), device)
        turns = taken.turns()
        if not turns:
            sys.exit(f"{algorithm}: no two checkpoints in {seconds:g} s; give a run more of them, or checkpoints fewer")
        plain, lost_s, more_cpu = ([turn[place] for turn in turns] for place in range(3))
        rows.append(
            (
                algorithm,
                f"{size / 1e6:,.0f} MB",
                f"{len(turns)}",
                f"{statistics.median(plain):,.0f}",
                _range(lost_s),
                f"{statistics.median(lost_s) / 60:.2%}",
                f"{statistics.median(more_cpu):.2%}",
            )
        )
    heads = (
        "algorithm",
        "checkpoint",
        "turns",
        "samples/s without",
        "seconds lost by one, range",
        "one a minute: samples/s",
        "CPU a sample",
    )
    print_table(heads, rows)


def _range(numbers: list[float]) -> str:
    return f"{statistics.median(numbers):.2f} ({min(numbers):.2f} to {max(numbers):.2f})"


class Taken:
    """What a run's events say, and how much computing its processes have used, by the run's clock."""

    def __init__(self) -> None:
        self._updates: list[tuple[float, int]] = []
        self._borders: list[float] = []
        self._cpu: list[tuple[float, float]] = []
        self._zero_s = float("inf")
        self._over = threading.Event()

    def hear(self, event: Event) -> None:
        if isinstance(event, Update) and (event.who == "server-0" or not event.who.startswith("server")):
            # Reported a moment later: the quickest report says best when time began.
            self._zero_s = min(self._zero_s, time.monotonic() - event.t)
            self._updates.append((event.t, event.samples))
        elif isinstance(event, Generation) and event.why == "checkpoint":
            # It begins where the last update before it was made.
            self._borders.append(self._updates[-1][0] if self._updates else event.t)

    def sample_cpu(self) -> None:
        while not self._over.wait(0.25):
            self._cpu.append((time.monotonic(), cpu_s(os.getpid())))

    def end(self) -> None:
        self._over.set()

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self._samples(0.0, self._updates[-1][0]) / self._updates[-1][0]

    def turns(self) -> list[tuple[float, float, float]]:
        """Of each: samples per second without, seconds lost by a checkpoint, and more CPU a sample at one a minute."""
        found = []
        for begin, end in zip(self._borders, self._borders[1:], strict=False):
            half = (begin + end) / 2
            half_s, spans = half - begin, ((begin, half), (half, end))
            with_, plain = (self._samples(a, b) / half_s for a, b in spans)
            cpu_with, cpu_plain = (self._used(a, b) / max(1, self._samples(a, b)) for a, b in spans)
            found.append((plain, half_s * (1 - with_ / plain), (cpu_with / cpu_plain - 1) * half_s / 60))
        return found

    def _samples(self, start: float, stop: float) -> int:
        times = [t for t, _ in self._updates]
        return sum(samples for _, samples in self._updates[bisect_left(times, start) : bisect_left(times, stop)])

    def _used(self, start: float, stop: float) -> float:
        """Seconds of computing in that time."""
        return self._cpu_at(stop) - self._cpu_at(start)

    def _cpu_at(self, t: float) -> float:
        at = t + self._zero_s
        place = min(max(1, bisect_left(self._cpu, (at, 0.0))), len(self._cpu) - 1)
        (before, low), (after, high) = self._cpu[place - 1], self._cpu[place]
        return low + (high - low) * min(1.0, max(0.0, (at - before) / (after - before)))


def cpu_s(pid: int) -> float:
    """Seconds of computing that a process and all below it have used so far."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # it has ended meanwhile
        return 0.0
    own = sum(int(field) for field in fields[11:15]) / TICKS_PER_S  # its own and those of children that have ended
    return own + sum(cpu_s(int(child)) for child in children)


def run(algorithm: str, seconds: float, every: int, device: str) -> tuple[Taken, int]:
    """What was seen of a run, and the bytes of its last checkpoint."""
    taken = Taken()
    watch = threading.Thread(target=taken.sample_cpu)
    watch.start()
    with tempfile.TemporaryDirectory() as folder:
        try:
            ownpace.train(
                algorithm=algorithm, task=Pictures("resnet18", (3, 16, 16)), engine="process", fleet="x2", batch_size=8,
                optimizer="adam", lr=1e-4, seconds=seconds, eval_every=10**9, checkpoint_every=every, device=device,
                out=Path(folder) / "run", on_event=taken.hear,
            )  # fmt: skip
        finally:
            taken.end()
            watch.join()
        files = sorted((Path(folder) / "run" / "checkpoints").glob("*.safetensors"))
        return taken, files[-1].stat().st_size if files else 0


if __name__ == "__main__":
    main()
