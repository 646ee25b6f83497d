"""Processes that decode images, so that a worker's own process only waits for them."""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
import threading
import weakref
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from ownpace.core.contract.errors import InputError
from ownpace.tasks import decode_images

SCRIPT = Path(decode_images.__file__)


class ImageLoaders:
    """Some processes that decode images, each led by a thread. They are started when they are first needed."""

    def __init__(self, count: int) -> None:
        self._threads = ThreadPoolExecutor(count, "ownpace-images")
        self._processes = _Processes()
        # When this object is gone. Where Python ends, they do so themselves.
        self._close = weakref.finalize(self, _end_soon, self._threads, self._processes)
        self._close.atexit = False

    def start(self, path: str, size: int, number: int | None, *, flip: bool) -> Future[bytes]:
        """Begin to decode an image: `decode_images.decode` says how. The result may be an InputError that names it."""
        question = json.dumps({"path": path, "size": size, "number": number, "flip": flip}).encode() + b"\n"
        # A function, not a method: a thread that held this object would keep it from ever being closed.
        return self._threads.submit(_ask, self._processes, path, question)

    def close(self) -> None:
        """End them."""
        self._close.detach()
        _end(self._threads, self._processes)


class _Processes:
    """One process for each thread that asks."""

    def __init__(self) -> None:
        self._own = threading.local()
        self._lock = threading.Lock()
        self._all: list[subprocess.Popen[bytes]] = []
        self._closed = False

    def mine(self) -> subprocess.Popen[bytes]:
        """That of this thread."""
        process: subprocess.Popen[bytes] | None = getattr(self._own, "process", None)
        if process is None or process.poll() is not None:
            with self._lock:  # none may be started after all have been ended
                if self._closed:
                    raise CancelledError
                # -P: the script's folder holds modules of ours, whose names must not hide others.
                command = [sys.executable, "-P", str(SCRIPT)]
                process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                self._own.process = process
                if not self._all:
                    atexit.register(self.end)
                self._all.append(process)
        return process

    def end(self) -> None:
        """End all of them, at once: nobody waits for an answer any more, and they have nothing to lose."""
        with self._lock:
            self._closed = True
        atexit.unregister(self.end)
        for process in self._all:
            process.kill()
            process.wait()
        for process in self._all:  # now that no thread can be in the middle of reading from one
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):  # what was not sent to it yet
                    assert pipe is not None
                    pipe.close()


def _ask(processes: _Processes, path: str, question: bytes) -> bytes:
    """One image from the process that this thread leads."""
    process = processes.mine()
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(question)
        process.stdin.flush()
        head = process.stdout.read(9)
        content = process.stdout.read(int.from_bytes(head[1:], "big")) if len(head) == 9 else b""
    except OSError:
        head = b""
    if len(head) < 9:
        raise InputError(
            f"the process that decodes images ended while it read {path} (exit code {process.wait()}); "
            "is there enough memory?"
        )
    if head[0]:
        reason = content.decode(errors="replace")[:200]
        raise InputError(f"{path} cannot be read as an image: {reason}; fetch it again, or remove it")
    return content


def _end_soon(threads: ThreadPoolExecutor, processes: _Processes) -> None:
    # Objects are collected in any thread and at any moment, also while it holds a lock that ending them needs.
    threading.Thread(target=_end, args=(threads, processes), name="ownpace-images-end", daemon=True).start()


def _end(threads: ThreadPoolExecutor, processes: _Processes) -> None:
    threads.shutdown(wait=False, cancel_futures=True)
    processes.end()
