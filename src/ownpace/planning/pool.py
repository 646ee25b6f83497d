"""Where trials are carried out: in other processes, several at once, or right here.

Processes are started as `python -m ownpace.planning.process` and spoken with in lines of JSON. So a script needs no
main guard, and nothing of it is run twice.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Protocol

from ownpace.core.contract.errors import InputError, NodeFailed
from ownpace.planning.trial import Trial, Tried, try_out
from ownpace.run import Config

MOST_BY_DEFAULT = 16
"""Processes: each takes half a gigabyte and seconds to start, and there are seldom more trials to be made at once."""


class Pool(Protocol):
    """Takes trials, and answers each in its own time."""

    num: int
    """How many are carried out at once."""

    def submit(self, trial: Trial, deadline: float | None = None) -> Future[Tried]:
        """Have it carried out. At that time of the monotonic clock, it ends with what is known by then."""

    def give_up(self) -> None:
        """Nobody waits any more for what is under way."""

    def __enter__(self) -> Pool: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None: ...


def open_pool(config: Config, processes: int | None = None) -> Pool:
    """A pool of this many processes (None: one for each core, 16 at most). It is this process alone where one is asked
    for, or a file cannot describe what is to be run: a task that was made in Python, and has no name to import it by.
    """
    num = min(MOST_BY_DEFAULT, os.cpu_count() or 1) if processes is None else processes
    if num <= 1:
        return Here()
    pool = Processes(num)
    if pool.can_describe(config):
        pool.start()
        return pool
    pool.__exit__(None, None, None)
    return Here()


class Here:
    """Carries trials out in this process, one after the other."""

    num = 1

    def submit(self, trial: Trial, deadline: float | None = None) -> Future[Tried]:
        """Carry it out at once."""
        future: Future[Tried] = Future()
        future.set_result(try_out(trial, deadline))
        return future

    def give_up(self) -> None:
        """Nothing is ever under way."""

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *details: object) -> None:
        pass


class Processes:
    """Carries trials out in processes of its own."""

    def __init__(self, num: int) -> None:
        self.num = num
        self._folder = tempfile.TemporaryDirectory(prefix="ownpace-plan-")
        self._threads = ThreadPoolExecutor(num)
        self._own = threading.local()
        self._lock = threading.Lock()
        self._children: list[subprocess.Popen[str]] = []
        self._spare: list[subprocess.Popen[str]] = []
        """Started, and nobody's yet."""
        self._busy: set[subprocess.Popen[str]] = set()
        self._files: dict[int, tuple[Config, str]] = {}
        """Where each configuration that trials share is written; kept, so that no other gets its identity."""

    def can_describe(self, config: Config) -> bool:
        """Whether another process can make this configuration again."""
        try:
            Config.load(self._file(config))
        except InputError:
            return False
        return True

    def start(self) -> None:
        """Start all processes: it takes them seconds, in which others can do something."""
        self._spare = [start_process() for _ in range(self.num)]
        self._children += self._spare

    def submit(self, trial: Trial, deadline: float | None = None) -> Future[Tried]:
        """Have it carried out by the first process that is free."""
        request = {
            "base": self._file(trial.base),
            "changes": dict(trial.changes),
            "level": trial.level,
            "num_test": trial.num_test,
            "by_loss": trial.by_loss,
            "noise": trial.noise,
            "seconds": trial.seconds,
            "deadline": deadline,
        }
        return self._threads.submit(self._ask, json.dumps(request))

    def give_up(self) -> None:
        """End the processes that are carrying something out; others are started when they are needed."""
        with self._lock:
            for child in self._busy:
                child.kill()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *details: object) -> None:
        """End all processes, whatever they are doing."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            for child in self._children:
                child.kill()
        self._threads.shutdown(wait=True)  # whoever waits for a child is told that it is gone
        for child in self._children:
            child.wait()
            for stream in (child.stdin, child.stdout):
                if stream is not None:
                    stream.close()
        self._folder.cleanup()

    def _file(self, config: Config) -> str:
        if id(config) not in self._files:
            path = Path(self._folder.name) / f"{len(self._files)}.json"
            config.save(path)
            self._files[id(config)] = config, str(path)
        return self._files[id(config)][1]

    def _ask(self, request: str) -> Tried:
        """In one of the threads, each of which has a child of its own."""
        with self._lock:
            child = self._child()
            self._busy.add(child)
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(request + "\n")
            child.stdin.flush()
            line = child.stdout.readline()
        except (OSError, ValueError):
            line = ""
        with self._lock:
            self._busy.remove(child)
        if not line:
            self._own.child = None
            raise NodeFailed("a process that carried out trials has ended; what it said of that stands above")
        return answered(json.loads(line))

    def _child(self) -> subprocess.Popen[str]:
        child: subprocess.Popen[str] | None = getattr(self._own, "child", None)
        if child is None and self._spare:
            child = self._own.child = self._spare.pop()
        elif child is None:
            child = self._own.child = start_process()
            self._children.append(child)
        return child


def start_process() -> subprocess.Popen[str]:
    """One more process that carries out trials."""
    # Where this one finds its modules, the other must, too: those of the user's own, and ownpace.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "ownpace.planning.process"]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env=environment,
        # Ctrl-C goes to all processes of a terminal's foreground; whoever starts this one decides what becomes of it.
        start_new_session=True,
    )


def answered(content: Mapping[str, object]) -> Tried:
    """What a process has answered."""
    if "bad_input" in content:
        raise InputError(str(content["bad_input"]))
    return Tried.from_json(content)


__all__ = ["Here", "Pool", "Processes", "open_pool"]
