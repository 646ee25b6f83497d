"""The processes that this one starts: it gives them their orders, notices their death, and leaves none behind.

Two ways to start one. The launcher forks its nodes from a server that has torch imported already. A torchrun rank
starts a fresh interpreter for each server and communicator. Either way a child gets one `NodeOrder` from its own parent
(`hand_over`), and holds one end of a pipe whose other end only the parent has: when the parent is gone, even by
SIGKILL, the child reads the end of the file and exits.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import pickle
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.connection import Connection as PipeEnd
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import BinaryIO, Protocol

from ownpace.core.contract.errors import MachineDied, OwnpaceError, PeerLost
from ownpace.core.contract.values import Role
from ownpace.engines.job import Job
from ownpace.engines.process.meet.hand_over import Parcel, pickled, start_process
from ownpace.engines.process.meet.rendezvous import Rendezvous
from ownpace.engines.process.node.terms import RunTerms
from ownpace.engines.roster import Roster

_MODULE = "ownpace.engines.process.run.node_main"
_PRELOADED = "ownpace.engines.process.run.preloaded"
_LONGEST_FOLDER = 70
"""Bytes: a socket's name has at most 107, and what multiprocessing adds has 33."""
_GONE_S = 10.0
"""How long the system may take to end a process that was killed."""
_NOBODY_TELLS = 255
"""What multiprocessing makes of a process whose server has been killed."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class NodeOrder:
    """What a child process is to be."""

    role: Role
    index: int
    name: str
    terms: RunTerms
    rendezvous: Rendezvous
    job: Job | None = None
    """For a worker: what it trains."""
    log_folder: Path | None = None
    is_late: bool = False
    """Whether the others have begun already."""
    last_words: Callable[[], list[str]] | None = None
    """What is said when the parent is gone, by one of its children."""


class Child(Protocol):
    """A process that was started here."""

    def exit_code(self) -> int | None:
        """How it ended; below zero: by this signal. None: it has not."""

    def wait(self, timeout_s: float) -> None:
        """Wait for its end, this long at most."""

    def kill(self) -> None:
        """End it at once, and forget it."""


class Supervisor:
    """All children of this process."""

    def __init__(self) -> None:
        self._children: dict[str, Child] = {}
        self._started: set[str] = set()
        self._seen_dead: set[str] = set()
        self._lifeline: tuple[PipeEnd, PipeEnd] | None = None

    def fork(self, order: NodeOrder, *, is_on_cpu: bool = True) -> None:
        """Start a node from the server that has torch imported; `is_on_cpu`: no node of the run needs a GPU."""
        self._end_before(order.name)
        context = multiprocessing.get_context("forkserver")
        if self._lifeline is None:
            # Whoever initializes CUDA before it forks keeps its children from using it, and what torch imports there is
            # up to torch.
            context.set_forkserver_preload([_PRELOADED if is_on_cpu else _MODULE])
            self._lifeline = context.Pipe(duplex=False)
        # Before a process that would start the server itself, open to all signals: the first, or if it was killed.
        _start_forkserver()
        from ownpace.engines.process.run.node_main import be_forked_node  # it imports this module

        try:
            process = start_process(be_forked_node, Parcel(order, _places()), self._lifeline[0], order.name)
        except (EOFError, OSError) as error:  # the server is gone, or no more files can be opened
            raise MachineDied(f"{order.name} cannot be started: {str(error) or 'its server is gone'}") from None
        log.info("forked %s as process %s", order.name, process.pid)
        self._add(order.name, _Forked(process))

    def spawn(self, order: NodeOrder) -> None:
        """Start a node in a fresh interpreter."""
        self._end_before(order.name)
        data = _places() + pickled(order)
        command = [sys.executable, "-c", f"from {_MODULE} import be_spawned_node; be_spawned_node()"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE)
        self._add(order.name, _Spawned(process))
        # Not waited for: a large order is taken when the child has imported torch, or never, if it is killed before.
        threading.Thread(target=_give, args=(process.stdin, data), name="ownpace-order", daemon=True).start()
        log.info("started %s as process %s", order.name, process.pid)

    def _end_before(self, name: str) -> None:
        # It has ended, or was declared dead while it was stopped. First: two of one name would both want to join.
        before = self._children.pop(name, None)
        if before is not None:
            before.kill()

    def _add(self, name: str, child: Child) -> None:
        self._seen_dead.discard(name)
        self._children[name] = child
        self._started.add(name)

    def started_all(self, roster: Roster) -> bool:
        """Whether every node of the run was a child of this process."""
        return self._started >= {node.name for node in roster.nodes}

    def deaths(self, samples: int = 0, *, even_clean: bool = True) -> list[OwnpaceError]:
        """An error for each child that has ended since the last time; for a clean end only if `even_clean`."""
        errors: list[OwnpaceError] = []
        for name, child in self._children.items():
            code = child.exit_code()
            if code is None or name in self._seen_dead or (code == 0 and not even_clean):
                continue
            self._seen_dead.add(name)
            log.info("%s ended with %s", name, code)
            if code < 0:
                how = f"was killed by {_name_of(-code)}" + (f" after {samples} samples" if samples else "")
                errors.append(MachineDied(f"{name} {how}; the others cannot go on without it"))
            else:  # it has told the hub why, if it could
                errors.append(PeerLost(f"{name} is gone: it ended with exit code {code}"))
            errors[-1].blame = name
        return errors

    def end(self, patience_s: float) -> None:
        """Leave no child behind: those that have not ended by then are killed."""
        deadline = time.monotonic() + patience_s
        # All are waited for before the first is killed: killing one makes the others fail instead of ending.
        for child in self._children.values():
            child.wait(max(0.0, deadline - time.monotonic()))
        for child in self._children.values():
            child.kill()
        self._children.clear()
        # Last: with the lifeline closed, a child that is still alive would exit as if this process had died.
        for end in self._lifeline or ():
            end.close()
        self._lifeline = None


class _Forked:
    """The server that it was forked from tells how it ended. If that was killed, the system tells whether it has."""

    def __init__(self, process: BaseProcess) -> None:
        self._process = process
        self._file = -1
        with contextlib.suppress(AttributeError, OSError):  # another system; it has ended already
            self._file = os.pidfd_open(process.pid)  # type: ignore[arg-type]  # it has been started

    def exit_code(self) -> int | None:
        code = self._process.exitcode
        return None if code == _NOBODY_TELLS and not self._has_ended(0.0) else code

    def _has_ended(self, timeout_s: float) -> bool:
        if self._file < 0:
            self._process.join(timeout_s)
            return not self._process.is_alive()
        ended = select.poll()
        ended.register(self._file, select.POLLIN)
        return bool(ended.poll(round(1000 * timeout_s)))

    def wait(self, timeout_s: float) -> None:
        self._has_ended(timeout_s)

    def kill(self) -> None:
        if self._file < 0:
            if self._process.is_alive():
                self._process.kill()
        else:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._file, signal.SIGKILL)
            self._has_ended(_GONE_S)
            os.close(self._file)
            self._file = -1
        self._process.join()
        self._process.close()


class _Spawned:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def exit_code(self) -> int | None:
        return self._process.poll()

    def wait(self, timeout_s: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # one of the real-time signals, most of which have no name
        return f"signal {number}"


def _give(to: BinaryIO, data: bytes) -> None:
    with contextlib.suppress(OSError):  # it is gone, which is noticed elsewhere
        to.write(data)
        to.flush()  # and left open: its end is the parent's end


def _places() -> bytes:
    """Where to import from. It goes first: the order is made of what is found there."""
    return pickle.dumps(sys.path)


def read_order(stream: BinaryIO) -> NodeOrder:
    """A child's order, from its own parent."""
    sys.path[:] = pickle.load(stream)
    order = pickle.load(stream)
    assert isinstance(order, NodeOrder)
    return order


def die_with_parent(read: Callable[[], object], last_words: Callable[[], list[str]] | None = None) -> None:
    """End this process at once when its parent is gone: only the parent holds the other end of what `read` reads.

    Of several that were forked, one says the last words.
    """

    def watch() -> None:
        with contextlib.suppress(EOFError, OSError):
            while read():
                pass
        # All try to remove it, and one does.
        if _remove_socket() and last_words is not None:
            with contextlib.suppress(Exception):  # whatever comes of that, this process ends
                for line in last_words():
                    print(f"ownpace: {line}", file=sys.stderr, flush=True)
        # Not sys.exit, which ends only this thread: the main one may be stuck in a collective.
        os._exit(1)

    threading.Thread(target=watch, name="ownpace-lifeline", daemon=True).start()


def _remove_socket() -> bool:
    """Remove where the server listens that this process was forked from, as its parent would have done at its end.

    Returns:
        Whether it was this process that did so.
    """
    address = getattr(forkserver._forkserver, "_forkserver_address", None)
    if isinstance(address, str) and not address.startswith("\0"):
        with contextlib.suppress(OSError):
            Path(address).unlink()
            with contextlib.suppress(OSError):
                Path(address).parent.rmdir()
            return True
    return False


def _start_forkserver() -> None:
    """Start it such that Ctrl-C and SIGTERM do not reach it, not even before it ignores signals by itself."""
    resource_tracker.ensure_running()  # else the forkserver would start it, and unblock all signals again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
    try:
        with _short_folder():
            forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _short_folder() -> Iterator[None]:
    """Let sockets of multiprocessing lie elsewhere, where the temporary folder has too long a name for one."""
    config: dict[str, object] = multiprocessing.current_process()._config  # type: ignore[attr-defined]  # no stubs
    usual = config.get("tempdir")
    if len(os.fsencode(tempfile.gettempdir())) <= _LONGEST_FOLDER:
        yield
        return
    for place in ("/tmp", "/var/tmp", "/dev/shm"):
        with contextlib.suppress(OSError):
            config["tempdir"] = made = tempfile.mkdtemp(prefix="pymp-", dir=place)
            util.Finalize(None, shutil.rmtree, args=(made, True), exitpriority=-100)
            break
    try:
        yield
    finally:
        config["tempdir"] = usual
