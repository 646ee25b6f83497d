"""A program that is tortured, followed from outside: what it has written, its processes, its end."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ownpace.core.contract.events import Event, Fault, Generation, Run, Update, from_line

PATIENCE_S = 120.0
"""How long anything may take that a run does by itself, next to other work of a small machine."""
_MARK = "OWNPACE_TORTURE_MARK"
_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


class StandsStill(Exception):
    """The run did not do in time what it has to."""


@dataclass(frozen=True)
class SeenEvent:
    """A record, and when it was written, by the monotonic clock that all processes of this machine share."""

    at: float
    event: Event


class WatchedRun:
    """A run that others trouble. All processes that come of it carry a mark."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: list[SeenEvent] = []
        self.wrong: list[str] = []
        """What its checkpoints and its last parameters counted too often or too seldom, in words."""
        self.checkpoints = 0
        self.reason: str | None = None
        self.on_look: Callable[[], None] = lambda: None
        """Called whenever it is looked at."""
        self._mark = str(uuid.uuid4())
        self._started: list[subprocess.Popen[bytes]] = []
        self._read = 0

    def start(self, *arguments: str, prefix: Sequence[str] = (), variables: Mapping[str, str] | None = None) -> None:
        """Start the program, or one of its ranks."""
        module = "ownpace.testing.torture_process.subject"
        inherited = {name: value for name, value in os.environ.items() if name not in _TORCHRUN}
        environment = {**inherited, "OMP_NUM_THREADS": "1", "OWNPACE_SILENCE_S": "2", _MARK: self._mark}
        environment["PYTHONFAULTHANDLER"] = "1"  # for show_stacks
        with (self.folder / f"output-{len(self._started)}.txt").open("wb") as output:
            self._started.append(
                subprocess.Popen(
                    [*prefix, sys.executable, "-m", module, *arguments, str(self.folder)],
                    env={**environment, **(variables or {})},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            )

    # ---- what it has written ----

    def look(self) -> None:
        """Read what is new."""
        path = self.folder / "records.jsonl"
        if path.exists():
            with path.open("rb") as file:
                file.seek(self._read)
                for line in file:
                    if line.endswith(b"\n"):  # otherwise the rest is still to come
                        self._read += len(line)
                        self._take(json.loads(line))
        self.on_look()

    def _take(self, record: Mapping[str, object]) -> None:
        if isinstance(record.get("event"), str):
            at = record["at"]
            assert isinstance(at, float)
            self.seen.append(SeenEvent(at, from_line(str(record["event"]))))
        wrong = record.get("wrong")
        if isinstance(wrong, list):
            self.wrong += wrong
            self.checkpoints += 1
        if "reason" in record:
            self.reason = str(record["reason"])

    def of(self, kind: type[Event], since: float = -math.inf) -> list[SeenEvent]:
        """The records of a kind that were written since then."""
        return [seen for seen in self.seen if seen.at >= since and isinstance(seen.event, kind)]

    @property
    def zero(self) -> float:
        """When the run's time began, by the clock here: what the hub records, it writes down at once."""
        marks = [seen.at - seen.event.t for seen in self.seen if isinstance(seen.event, Fault | Generation)]
        return min(marks, default=math.nan)

    @property
    def update_times(self) -> list[float]:
        """When updates were made, by the clock here, in order."""
        return sorted(self.zero + seen.event.t for seen in self.seen if isinstance(seen.event, Update))

    def samples_since(self, at: float) -> int:
        """Of the updates that were heard of since then."""
        return sum(seen.event.samples for seen in self.of(Update, at) if isinstance(seen.event, Update))

    @property
    def workers(self) -> list[str]:
        """All of the fleet."""
        return next((seen.event.groups["workers"] for seen in self.seen if isinstance(seen.event, Run)), [])

    @property
    def members(self) -> list[str]:
        """Those that take part now."""
        changes = [seen.event.members for seen in self.seen if isinstance(seen.event, Generation)]
        return next((members for members in reversed(changes) if members is not None), self.workers)

    def until(self, condition: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
        """Wait for something.

        Raises:
            StandsStill: It does not happen.
        """
        deadline = time.monotonic() + patience_s
        while True:
            self.look()
            if condition():
                return
            ended = [process.poll() for process in self._started]
            if all(code is not None for code in ended):
                raise StandsStill(f"{what}: the run has ended before, with {ended} ({self.reason})")
            if time.monotonic() > deadline:
                raise StandsStill(f"{what}: not within {patience_s:g} s")
            time.sleep(0.02)

    # ---- its processes ----

    def processes(self) -> dict[str, int]:
        """The process of each node: the one that writes its log; of several, the youngest."""
        found: dict[str, tuple[int, int]] = {}
        for pid in self.alive():
            with suppress(OSError, ValueError):
                start = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
                for link in Path(f"/proc/{pid}/fd").iterdir():
                    with suppress(OSError):
                        target = link.readlink()
                        if target.parent == self.folder / "logs":
                            found[target.stem] = max(found.get(target.stem, (0, 0)), (start, pid))
        return {name: pid for name, (_, pid) in found.items()}

    def alive(self) -> list[int]:
        """All processes that came of it. Zombies have no environment."""
        mark = f"{_MARK}={self._mark}".encode()
        found = []
        for path in Path("/proc").iterdir():
            with suppress(OSError):
                if path.name.isdecimal() and mark in (path / "environ").read_bytes().split(b"\0"):
                    found.append(int(path.name))
        return found

    def end(self) -> list[int]:
        """Let it come to its end; returns the exit codes.

        Raises:
            StandsStill: It does not, or leaves processes behind.
        """
        (self.folder / "enough").touch()
        deadline = time.monotonic() + PATIENCE_S
        while any(process.poll() is None for process in self._started):
            if time.monotonic() > deadline:
                raise StandsStill(f"it was to end: not within {PATIENCE_S:g} s")
            time.sleep(0.05)
        self.look()
        deadline = time.monotonic() + PATIENCE_S / 4
        while left := self.alive():
            if time.monotonic() > deadline:
                raise StandsStill(f"processes are left: {left}")
            time.sleep(0.05)
        return [process.returncode for process in self._started]

    def show_stacks(self) -> None:
        """Let every node write where it is into its output; that ends it."""
        for pid in self.processes().values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGABRT)
        time.sleep(1.0)

    def kill(self) -> None:
        """Leave nothing behind."""
        for pid in self.alive():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self._started:
            process.wait()
