"""What the process that records a run keeps of each death: counted, since half an hour of `churn.py` is mostly waiting.

    python benchmarks/deaths.py [deaths] [workers] [algorithm]

A worker is killed as soon as all are there, and started again at once; that makes a death a second or so. After every
tenth part: the memory of the launcher, which is this process; what malloc has in use, and what it has free, but keeps;
Python's objects and blocks; open files, and keys in the run's store.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import re
import signal
import sys
import tempfile
from pathlib import Path
from unittest import mock

import ownpace
from ownpace.core.contract.errors import Interrupted
from ownpace.core.contract.events import Event, Fault, Generation
from ownpace.engines.process.meet import restarts
from ownpace.engines.process.run import launch
from table import print_table

HEADS = ("deaths", "generations", "memory, MB", "in use", "free", "objects", "blocks", "files", "keys")


class Deaths:
    """Kills one worker after the other, and counts."""

    def __init__(self, wanted: int, workers: int, out: Path) -> None:
        self.rows: list[tuple[str, ...]] = []
        self._wanted, self._out = wanted, out
        self._names = [f"worker-{number}" for number in range(workers)]
        self._deaths = self._generations = 0
        self._store, port = launch.local_store()
        self.stores = [(self._store, port)]

    def hear(self, event: Event) -> None:
        """Kill the next worker once all are there."""
        if isinstance(event, Fault):
            self._deaths += 1
            if self._deaths % max(1, self._wanted // 10) == 0:
                self._count()
            if self._deaths >= self._wanted:
                os.kill(os.getpid(), signal.SIGINT)
        elif isinstance(event, Generation):
            self._generations += 1
            # The first border is a checkpoint; from then on, one of them joins, and the next is killed.
            if self._deaths < self._wanted and (event.members is None or len(event.members) == len(self._names)):
                self._kill(self._names[1 + self._deaths % (len(self._names) - 1)])

    def _kill(self, name: str) -> None:
        log = str(self._out / "logs" / f"{name}.log")
        for link in Path("/proc").glob("[0-9]*/fd/*"):
            with contextlib.suppress(OSError):
                if os.readlink(link) == log:  # noqa: PTH115  # it may be no path
                    os.kill(int(link.parts[2]), signal.SIGKILL)

    def _count(self) -> None:
        gc.collect()
        status = Path("/proc/self/status").read_text(encoding="ascii")
        memory = int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]  # Linux has it
        used, free = _malloc()
        counts = (len(gc.get_objects()), sys.getallocatedblocks(), len(list(Path("/proc/self/fd").iterdir())))
        row = (self._deaths, self._generations, f"{memory:.1f}", f"{used:.1f}", f"{free:.1f}", *counts)
        self.rows.append((*map(str, row), str(self._store.num_keys())))


def _malloc() -> tuple[float, float]:
    """What malloc has in use and what it has free, of all arenas, in megabytes."""
    library = ctypes.CDLL(None)
    library.open_memstream.restype = ctypes.c_void_p
    text, size = ctypes.c_char_p(), ctypes.c_size_t()
    stream = ctypes.c_void_p(library.open_memstream(ctypes.byref(text), ctypes.byref(size)))
    library.malloc_info(0, stream)
    library.fclose(stream)
    _, _, sums = (text.value or b"").decode().rpartition("</heap>")
    free = sum(int(found) for found in re.findall(r'<total type="(?:fast|rest)" count="\d+" size="(\d+)"', sums))
    whole = int(re.search(r'<system type="current" size="(\d+)"', sums)[1])  # type: ignore[index]  # glibc says so
    return (whole - free) / 1e6, free / 1e6


def main() -> None:
    wanted, workers, algorithm = (*sys.argv[1:], *("100", "4", "stride")[len(sys.argv) - 1 :])
    with tempfile.TemporaryDirectory(prefix="ownpace-deaths-") as folder:
        deaths = Deaths(int(wanted), int(workers), Path(folder) / "run")
        with (
            mock.patch.object(restarts, "_LONGEST_S", 0.0),  # started again at once, however young they die
            mock.patch.object(launch, "local_store", deaths.stores.pop),
            contextlib.suppress(Interrupted),
        ):
            ownpace.train(
                algorithm=algorithm, task="ownpace.testing.blobs:Blobs", engine="process", batch_size=8, lr=0.01,
                fleet=",".join(["0.04"] * int(workers)), on_failure="restart", samples=10**9, eval_every=2000,
                checkpoint_every=2000, log_files=True, out=Path(folder) / "run", on_event=deaths.hear,
            )  # fmt: skip
    print_table(HEADS, deaths.rows)


if __name__ == "__main__":
    main()
