"""A rank does not outlive torchrun: its agent is watched while the rank takes part in a run, and not a moment longer.

An agent that is killed with SIGKILL takes nobody along: its ranks would train on, with nobody left to stop them. The
agent is the nearest ancestor that was not itself started by torchrun, so a rank behind a shell script is found, too. A
process that was detached on purpose has no such ancestor but the first process of all, and is left alone; so is one
that was started by hand, without torchrun.

Not by PR_SET_PDEATHSIG: that tells of the direct parent alone, and of the end of the thread that started the process,
and its signal would go to handlers of the user's.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ownpace.core.contract.errors import MachineDied

_STARTED_BY_TORCHRUN = "TORCHELASTIC_RUN_ID"
_LOOK_EVERY_S = 0.5
GRACE_S = 10.0
"""How long a rank may take to leave the run after its agent is gone."""


class AgentWatch:
    """Calls `on_gone` when the agent is gone; if the run has not been left some seconds later, ends the process."""

    def __init__(self, on_gone: Callable[[], None], agent: int | None, grace_s: float = GRACE_S) -> None:
        self._on_gone = on_gone
        self._grace_s = grace_s
        self._over = threading.Event()
        if agent is not None:
            # Opened here, not in the thread: from now on it is this very process, whoever has its number later.
            ended = _Ended(agent)
            threading.Thread(target=self._watch, args=(ended,), name="ownpace-agent", daemon=True).start()

    def _watch(self, ended: _Ended) -> None:
        while not self._over.is_set():
            if ended.within(_LOOK_EVERY_S):
                self._on_gone()
                if not self._over.wait(self._grace_s):
                    os._exit(MachineDied.exit_code)  # the main thread is stuck, or does not look
                break
        ended.close()

    def close(self) -> None:
        """The run has been left."""
        self._over.set()


class _Ended:
    """Whether a process has ended."""

    def __init__(self, pid: int) -> None:
        self._parent = os.getppid()
        self._file = -1
        # Where there are no such files, this process gets another parent when its own has ended.
        with contextlib.suppress(AttributeError, OSError):
            self._file = os.pidfd_open(pid)

    def within(self, seconds: float) -> bool:
        """Wait for it, this long at most."""
        if self._file >= 0:
            ended = select.poll()  # not select, which takes no file from number 1024 on
            ended.register(self._file, select.POLLIN)  # readable when it has ended
            return bool(ended.poll(round(1000 * seconds)))
        time.sleep(seconds)
        return os.getppid() != self._parent

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)


def find_agent() -> int | None:
    """The torchrun process that this one belongs to; None: it does not belong to any."""
    if _STARTED_BY_TORCHRUN not in os.environ:
        return None
    if not Path("/proc/self/environ").exists():
        return os.getppid()
    pid = os.getppid()
    while pid > 1:
        variables = _entry(pid, "environ")
        if variables is None:
            return None
        if not any(line.startswith(f"{_STARTED_BY_TORCHRUN}=".encode()) for line in variables.split(b"\0")):
            return pid
        # Behind the name, which may hold anything, even brackets: state, parent.
        stat = (_entry(pid, "stat") or b") ? 0").rpartition(b")")[2].split()
        pid = int(stat[1])
    return None


def _entry(pid: int, name: str) -> bytes | None:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return None


def started_by() -> str | None:
    """A name of the agent that started this process, which no other has had since the machine was started."""
    agent = find_agent()
    if agent is None:
        return None
    boot = Path("/proc/sys/kernel/random/boot_id")
    since = (_entry(agent, "stat") or b") ").rpartition(b")")[2].split()[19:20]
    return f"{boot.read_text().strip() if boot.exists() else ''}/{agent}/{b''.join(since).decode()}"
