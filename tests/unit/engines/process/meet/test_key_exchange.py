"""Ranks come to one key, and nobody who reads or writes the store does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from ownpace.core.contract.errors import InputError, WireError
from ownpace.engines.process.meet.incarnation import new_mark
from ownpace.engines.process.meet.key_exchange import KeySettings, agree_on_key, offered, stretch
from ownpace.engines.process.talk import private_files

KEY = "a key of many characters"
NONE, INSECURE, GIVEN = KeySettings("", False), KeySettings("", True), KeySettings(KEY, False)


class Recorded(dist.Store):
    """A store that a stranger listens to, and in which everything that is written under a name is replaced."""

    def __init__(self, replaced: dict[str, str] | None = None) -> None:
        super().__init__()
        self._store = dist.HashStore()
        self._replaced = replaced or {}
        self.seen: list[str] = []

    def set(self, key: str, value: str) -> None:
        self.seen.append(f"{key}={value}")
        self._store.set(key, self._replaced.get(key, value))

    def get(self, key: str) -> bytes:
        return self._store.get(key)

    def check(self, keys: list[str]) -> bool:
        return self._store.check(keys)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def exchange(store: Recorded, settings: list[KeySettings], *, apart: bool = False) -> list[str | Exception]:
    """What each rank ends with; `apart`: the others are not where rank 0's file is."""
    mark, ranks = new_mark(), range(len(settings))

    def take_part(rank: int) -> str | Exception:
        name = mark if rank == 0 or not apart else new_mark()
        try:
            return agree_on_key(store, settings[rank], (rank, len(ranks)), name, secret if rank == 0 else "", 60)
        except (InputError, WireError) as error:
            return error

    with offered(settings[0], 0, mark) as secret, ThreadPoolExecutor(len(ranks)) as pool:
        outcomes = list(pool.map(take_part, ranks))
    assert not private_files.folder().exists()
    return outcomes


def test_on_one_host_the_key_goes_through_a_file_and_never_through_the_store():
    for settings in (NONE, INSECURE):
        store = Recorded()
        keys = exchange(store, 3 * [settings])
        assert len(set(keys)) == 1
        assert len(str(keys[0])) == 64
        assert not any(str(keys[0]) in line for line in store.seen)


def test_a_key_that_was_given_is_another_secret_each_time_and_shows_16_bits():
    store = Recorded()
    first, second = exchange(store, 2 * [GIVEN]), exchange(Recorded(), 2 * [GIVEN])
    assert len({*first, *second}) == 2
    assert not any(str(first[0])[:8] in line or KEY in line for line in store.seen)
    assert {len(line.partition("=")[2]) for line in store.seen} == {0, 8}
    assert stretch(KEY, "a") != stretch(KEY, "b") != stretch(f"{KEY} ", "b")


def test_ranks_apart_need_a_key_or_the_word_of_all():
    for settings in ([NONE, NONE, NONE], [INSECURE, INSECURE, NONE], [NONE, INSECURE, INSECURE]):
        store = Recorded()
        outcomes = exchange(store, settings, apart=True)
        for outcome in outcomes:
            assert "ranks 1, 2 cannot read the key that rank 0 made on its host" in str(outcome)
            assert "OWNPACE_INSECURE=1" in str(outcome)
            assert "secrets.token_urlsafe(32)" in str(outcome)
        assert not any("open-key" in line for line in store.seen)
    store = Recorded()
    keys = exchange(store, 3 * [INSECURE], apart=True)
    assert len(set(keys)) == 1
    assert f"open-key={keys[0]}" in store.seen


@pytest.mark.parametrize("settings", [[GIVEN, NONE], [NONE, GIVEN], [GIVEN, KeySettings(KEY[::-1], False)]])
def test_different_keys_are_told_apart(settings):
    for outcome in exchange(Recorded(), settings):
        assert "rank 0 and rank 1 have different run keys" in str(outcome)


def test_what_a_stranger_writes_does_not_make_a_rank_take_its_key():
    """Rank 1 is not insecure: whatever the others seem to say, it takes no key from the store."""
    lies = {"key/0": "/1/1", "key/1": "/0/1", "open-key": "0" * 64}
    first, second = exchange(Recorded(lies), [NONE, NONE], apart=True)
    for outcome in (first, second):
        assert isinstance(outcome, InputError)
        assert "cannot read the key" in str(outcome)
    # Nor does "everybody has it": one that has none does not go on without.
    outcome = exchange(Recorded({"key/1": "/1/0"}), [NONE, NONE], apart=True)[1]
    assert "rank 1 cannot read the key" in str(outcome)
    for nonsense in ("", "/", "x", "ffff/1/2", "/1/1 ", "\xff"):
        for outcome in exchange(Recorded({"key/1": nonsense}), [NONE, NONE]):
            assert isinstance(outcome, WireError)
    assert isinstance(exchange(Recorded({"open-key": "short"}), [INSECURE, INSECURE], apart=True)[1], WireError)


def test_a_key_that_can_be_guessed_is_refused(monkeypatch):
    monkeypatch.setenv("OWNPACE_KEY", "hunter2")
    with pytest.raises(InputError, match=r"OWNPACE_KEY has 7 characters and could be guessed; use at least 16"):
        KeySettings.read()
    monkeypatch.setenv("OWNPACE_KEY", KEY)
    assert KeySettings.read() == GIVEN
    monkeypatch.delenv("OWNPACE_KEY")
    for text, insecure in (("", False), ("0", False), ("1", True)):
        monkeypatch.setenv("OWNPACE_INSECURE", text)
        assert KeySettings.read() == KeySettings("", insecure)
