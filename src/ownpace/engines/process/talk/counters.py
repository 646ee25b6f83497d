"""Counts that all workers share: how far the queue of samples has been taken, and by whom."""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import itertools
import os
import re
import struct
import time
from collections.abc import Callable, Iterator

from ownpace.core.contract.errors import InputError, WireError
from ownpace.core.learning.claims import Claim
from ownpace.core.learning.sampling import Take
from ownpace.engines.process.talk import private_files
from ownpace.engines.process.talk.store import KeyValuesAndLists, read_when_set

_KEY = "counter"
_MARK = re.compile(rb"[0-9a-f]{32}")
_CLAIMS = re.compile(rb"([0-9]{1,18} [0-9]{1,18} )*")
_MOST_COUNTED = 1 << 60
_COUNT = struct.Struct("<q")
_LOG = struct.Struct("<qq")
"""The loop whose claims the log holds, and how many: the first bytes of the file of counts."""
_CLAIM = struct.Struct("<qii")
_ROOM = (1 << 16, 1 << 20)
"""Bytes of both files from the beginning: for 8,190 loops, and 65,536 claims, which end with their generation."""
_WORD_S = 5.0
"""How long it takes at most until all have heard that a generation is over."""
_PAUSES_S = (2e-5,) * 50 + (0.001,) * 20 + (0.02,)
"""How long to wait between two attempts to lock a file, which others hold for microseconds."""


class Counters:
    """Any number of counts, by number, all zero at first; of one of them, also who took what.

    On one host they are in a small file, which is locked for each change: 7 µs, where asking the store takes a turn
    of another process (30 µs where there is a core for it, 240 where there is none). Several hosts ask the store.

    Anyone may write into a store, so it says neither where the files are nor what they are called: their names follow
    from the run's secret and a mark that the first worker draws. A wrong mark leads to no file at all.
    """

    def __init__(
        self,
        store: KeyValuesAndLists,
        secret: str,
        *,
        first: bool,
        spans_hosts: bool,
        scope: str = "",
        timeout_s: float = 120.0,
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._scope = scope
        self._files: _Files | None = None
        self._names: list[str] = []
        self._noted = ""
        """Where the store has this worker's latest claims: it would keep them as long as the run lasts."""
        self._counted: set[str] = set()
        """Where it has the counts."""
        if not spans_hosts:
            if first:
                # Made before the mark is published: the others open them as soon as they can read it.
                mark, self._names, counts, claims = _created(secret)
                store.set(scope + _KEY, mark.decode())
            else:
                mark = read_when_set(store, scope + _KEY, "rank 0", timeout_s, on_wait)
                counts, claims = _opened(secret, mark, on_wait)
            self._files = _Files(counts, claims, on_wait)

    def forget_path(self) -> None:
        """All workers have opened the files: their names can go, so that nothing is left when the last one ends."""
        if self._names:
            self._store.delete_key(self._scope + _KEY)
        for name in self._names:
            private_files.remove(name)
        self._names = []

    def taking(self, number: int) -> Take:
        """Takes this many places in that count, and returns the first."""
        files = self._files
        if files is None:
            return lambda places: self._add(f"{self._scope}count/{number}", places) - places

        def take(places: int) -> int:
            with files as (counts, _):
                return _advance(counts, number, places)

        return take

    def claiming(self, number: int, rank: int) -> Take:
        """The same, and `claims` knows that it was this rank."""
        files = self._files
        if files is None:
            take = self.taking(number)

            def claim_from_store(places: int) -> int:
                start = take(places)
                # After the count: a claim that is not there yet is one that nothing has been learnt from.
                self.note(number, Claim(start, places, rank))
                return start

            return claim_from_store

        def claim(places: int) -> int:
            with files as (counts, claims):
                start = _advance(counts, number, places)
                _append(counts, claims, number, Claim(start, places, rank))
            return start

        return claim

    def note(self, number: int, claim: Claim) -> None:
        """Note places that needed no count: those of a worker's own share."""
        if self._files is None:
            key = f"{self._scope}claims/{number}/{claim.rank}"
            if key != self._noted:  # the first of a loop: nobody asks for those of the one before
                self._forget_claims()
                self._noted = key
            self._store.append(key, f"{claim.start} {claim.samples} ")
            return
        with self._files as (counts, claims):
            _append(counts, claims, number, claim)

    def forget(self) -> None:
        """The next generation has started, for all: nobody counts here, nor asks any more what this worker took."""
        self._forget_claims()
        for key in self._counted:
            self._store.delete_key(key)
        self._counted = set()

    def _forget_claims(self) -> None:
        if self._noted:
            self._store.delete_key(self._noted)
            self._noted = ""

    def claims(self, number: int, num_workers: int) -> list[Claim]:
        """Who took which places in that count, in the order of the places; of the latest loop only."""
        if self._files is None:
            return sorted(claim for rank in range(num_workers) for claim in self._in_store(number, rank))
        with self._files as (counts, claims):
            current, length = _read(_LOG, counts, 0)
            written = os.pread(claims, length * _CLAIM.size, 0) if current == number else b""
        return sorted(Claim(*claim) for claim in _CLAIM.iter_unpack(written))

    def _add(self, key: str, places: int) -> int:
        self._counted.add(key)
        now = int(self._store.add(key, places))
        if not places <= now <= _MOST_COUNTED:
            raise WireError(f"the store says that {now} samples were taken, which no worker of this run has counted")
        return now

    def _in_store(self, number: int, rank: int) -> Iterator[Claim]:
        written = self._store.listed(f"{self._scope}claims/{number}/{rank}")
        if _CLAIMS.fullmatch(written) is None:
            raise WireError(f"the store says {written[:40]!r} of the samples of rank {rank}: no rank wrote that")
        numbers = map(int, written.split())
        for start, count in zip(numbers, numbers, strict=True):
            yield Claim(start, count, rank)

    def close(self) -> None:
        """Close the files."""
        if self._files is not None:
            self.forget_path()
            self._files.close()
            self._files = None


class _Files:
    """Those of counts and of claims; `with` locks them, so that two workers are never handed the same samples."""

    def __init__(self, counts: int, claims: int, on_wait: Callable[[], None]) -> None:
        self._both = counts, claims
        self._on_wait = on_wait

    def __enter__(self) -> tuple[int, int]:
        # Not without an ear: a worker may have been stopped while it held the lock.
        for pause_s in itertools.chain(_PAUSES_S, itertools.repeat(_PAUSES_S[-1])):
            try:
                fcntl.lockf(self._both[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(pause_s)
                if pause_s == _PAUSES_S[-1]:
                    self._on_wait()
        return self._both

    def __exit__(self, *details: object) -> None:
        fcntl.lockf(self._both[0], fcntl.LOCK_UN)

    def close(self) -> None:
        """Close them."""
        for file in self._both:
            os.close(file)
        # Whoever still counts here must not write into other files that have got these numbers.
        self._both = -1, -1


def _names(secret: str, mark: bytes) -> list[str]:
    """Of the two files: only who knows the run's secret can tell them."""
    digest = hmac.new(secret.encode(), mark, hashlib.sha256).hexdigest()[:32]
    return [f"counts-{digest}", f"claims-{digest}"]


def _created(secret: str) -> tuple[bytes, list[str], int, int]:
    """A new mark, and the names of both files, and the files."""
    private_files.remove_abandoned("claims", "counts")
    while True:
        mark = os.urandom(16).hex().encode()
        names = _names(secret, mark)
        # Not the file of counts: that is locked for each change, and some file systems take all locks for the same.
        claims = private_files.create(names[1], _ROOM[1])
        if private_files.hold(claims):
            return mark, names, private_files.create(names[0], _ROOM[0]), claims
        os.close(claims)


def _opened(secret: str, mark: bytes, on_wait: Callable[[], None]) -> tuple[int, int]:
    """Both files, which the first worker has made."""
    if _MARK.fullmatch(mark) is None:
        raise WireError(f"the store says {mark[:40]!r} of the counters of this run: rank 0 did not write that")
    counts, claims = _names(secret, mark)
    deadline = time.monotonic() + _WORD_S
    while True:
        try:
            opened = private_files.open_existing(counts)
            try:
                return opened, private_files.open_existing(claims)
            except FileNotFoundError:
                os.close(opened)
                raise
        except FileNotFoundError:
            # The first worker may have left the generation, and taken them along: that is said here, too.
            on_wait()
            if time.monotonic() > deadline:
                raise InputError(
                    f"the counters that rank 0 has made are not in {private_files.folder()}; ranks of one host need "
                    "one temporary folder: do they have different users, containers or TMPDIR?"
                ) from None
            time.sleep(_PAUSES_S[-1])


def _advance(counts: int, number: int, places: int) -> int:
    offset = _LOG.size + _COUNT.size * number
    (start,) = _read(_COUNT, counts, offset)
    os.pwrite(counts, _COUNT.pack(start + places), offset)
    return start


def _append(counts: int, claims: int, number: int, claim: Claim) -> None:
    current, length = _read(_LOG, counts, 0)
    if current != number:
        # The first claim of a loop: all workers have left the one before, and nobody asks for its claims any more.
        length = 0
    os.pwrite(claims, _CLAIM.pack(*claim), length * _CLAIM.size)
    os.pwrite(counts, _LOG.pack(number, length + 1), 0)


def _read(numbers: struct.Struct, file: int, offset: int) -> tuple[int, ...]:
    """Numbers of a file; zeros where nothing has been written."""
    return numbers.unpack(os.pread(file, numbers.size, offset).ljust(numbers.size, b"\0"))
