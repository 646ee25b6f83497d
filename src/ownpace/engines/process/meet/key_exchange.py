"""How the ranks that torchrun started come to have one key, although anyone may read and write their store.

    OWNPACE_KEY is given      all ranks must have been given the same one; the run's secret follows from it and from
                              the mark of this start, so that no two starts have the same
    it is not                 rank 0 draws a secret and leaves it in a file that only its user on its host can read;
                              the store says only that there is one. Ranks that cannot read it are on another host: they
                              need OWNPACE_KEY
    OWNPACE_INSECURE=1        … or the word of the user, on every rank, that the secret may lie open in the store

A key that a person has made up can be guessed by whoever sees what is done with it. So short ones are refused, and each
guess is made expensive (scrypt). Of the result ranks show each other 16 bits, to tell two keys apart.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ownpace.core.contract.errors import InputError, WireError, ranks_in_words
from ownpace.engines.process.meet.incarnation import say_to_all
from ownpace.engines.process.talk import private_files
from ownpace.engines.process.talk.store import KeyValues, read_when_set

DONE = "key-done"
"""Where a rank says that it has read all that it needs."""
_SHORTEST = 16
_SECRET = re.compile(rb"[0-9a-f]{64}")
_HOW = """python -c "import secrets; print(secrets.token_urlsafe(32))\""""
_SAID = re.compile(r"([0-9a-f]{4})?/([01])/([01])", re.ASCII)
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class KeySettings:
    """What the user said about keys."""

    given: str
    """The key that all hosts share; empty: none."""
    insecure: bool
    """Whether the run's secret may lie open in the store, where there is no other way."""

    @classmethod
    def read(cls) -> KeySettings:
        """From OWNPACE_KEY and OWNPACE_INSECURE.

        Raises:
            InputError: The key can be guessed.
        """
        given = os.environ.get("OWNPACE_KEY", "")
        if given and len(given) < _SHORTEST:
            raise InputError(
                f"OWNPACE_KEY has {len(given)} characters and could be guessed; use at least {_SHORTEST} random ones, "
                f"as this makes them: {_HOW}"
            )
        return cls(given, os.environ.get("OWNPACE_INSECURE", "") not in ("", "0"))


def stretch(given: str, mark: str) -> str:
    """The secret of one start of a run, from a key that a person may have made up."""
    return hashlib.scrypt(given.encode(), salt=f"ownpace {mark}".encode(), n=1 << 14, r=8, p=1, dklen=32).hex()


@contextmanager
def offered(settings: KeySettings, rank: int, mark: str) -> Iterator[str]:
    """On rank 0, a secret for those who can read its file, while this is open; empty on other ranks.

    Entered before the others can know the mark of this start, which names the file: it has to be there by then.
    """
    if rank or settings.given:
        yield ""
        return
    secret = os.urandom(32).hex()
    with offered_again(settings, secret, mark):
        yield secret


@contextmanager
def offered_again(settings: KeySettings, secret: str, mark: str) -> Iterator[None]:
    """On rank 0: leave the secret where ranks on this host find it, while this is open, unless they were given one."""
    if settings.given:
        yield
        return
    name = f"key-{mark}"
    file = private_files.create(name)
    try:
        with os.fdopen(file, "w", encoding="ascii") as opened:
            opened.write(secret)
        yield
    finally:
        private_files.remove(name)


@dataclass(frozen=True)
class _Said:
    """What a rank tells the others about its key."""

    mark: str
    """Of the key that it was given; empty: none."""
    has_secret: bool
    insecure: bool

    def __str__(self) -> str:
        return f"{self.mark}/{self.has_secret:d}/{self.insecure:d}"

    @classmethod
    def parse(cls, rank: int, text: str) -> _Said:
        read = _SAID.fullmatch(text)
        if read is None:
            raise WireError(f"the store says {text[:40]!r} of the key of rank {rank}: no rank wrote that")
        return cls(read[1] or "", read[2] == "1", read[3] == "1")


def agree_on_key(
    store: KeyValues, settings: KeySettings, place: tuple[int, int], mark: str, secret: str, timeout_s: float
) -> str:
    """The secret of this start of the run.

    Args:
        store: Where the ranks of this start write, and whoever else can reach it.
        settings: What the user said.
        place: This process's rank, and how many there are.
        mark: Of this start.
        secret: What rank 0 offers; empty on all others.
        timeout_s: How long to wait for the others.

    Raises:
        InputError: Ranks have different keys, or a rank cannot be told the key in a safe way.
        MachineDied: A rank did not come in time.
    """
    rank, world_size = place
    own = stretch(settings.given, mark) if settings.given else secret or _from_file(mark)
    said = _Said(_bits(own) if settings.given else "", bool(own), settings.insecure)
    texts = say_to_all(store, "key", rank, world_size, str(said), timeout_s)
    try:
        return _decided(store, settings, rank, own, [_Said.parse(*each) for each in enumerate(texts)], timeout_s)
    finally:
        store.set(f"{DONE}/{rank}", "")
        # Its file must be there until all have looked for it, and its store, if it keeps that, until all have read it.
        for other in range(1, world_size if rank == 0 else 0):
            read_when_set(store, f"{DONE}/{other}", f"rank {other}", timeout_s)


def _decided(
    store: KeyValues, settings: KeySettings, rank: int, own: str, said: Sequence[_Said], timeout_s: float
) -> str:
    different = [number for number, each in enumerate(said) if each.mark != said[0].mark]
    if different:
        raise InputError(
            f"rank 0 and {ranks_in_words(different)} have different run keys; give all ranks the same OWNPACE_KEY, or "
            "none, so that one is made for the run"
        )
    apart = [number for number, each in enumerate(said) if not each.has_secret]
    if not apart and own:
        return own
    # What others are said to allow counts for nothing here: anyone may have written it.
    if not settings.insecure or not all(said[number].insecure for number in (0, *apart)):
        raise InputError(
            f"{ranks_in_words(apart or [rank])} cannot read the key that rank 0 made on its host; give all ranks the "
            f"same OWNPACE_KEY, made by {_HOW}, or let all have OWNPACE_INSECURE=1 if no stranger can reach the "
            "rendezvous"
        )
    if rank == 0:
        log.warning("the key of this run lies open in the store, as OWNPACE_INSECURE allows; OWNPACE_KEY would not")
        store.set("open-key", own)
    return own or _secret(read_when_set(store, "open-key", "the key of rank 0", timeout_s), "the store")


def _from_file(mark: str) -> str:
    """The secret that rank 0 offers on this host to this user; empty: it does not."""
    try:
        file = private_files.open_existing(f"key-{mark}")
    except FileNotFoundError:
        return ""
    with os.fdopen(file, "rb") as opened:
        return _secret(opened.read(100), "the file of rank 0")


def _secret(read: bytes, where: str) -> str:
    if _SECRET.fullmatch(read) is None:
        raise WireError(f"{where} holds no key, where rank 0 should have left one")
    return read.decode()


def _bits(secret: str) -> str:
    return hashlib.sha256(f"ownpace mark {secret}".encode()).hexdigest()[:4]
