"""Counts that all workers share."""

from __future__ import annotations

import os
import re

import pytest
import torch.distributed as dist

from ownpace.core.contract.errors import InputError, PeerLost, WireError
from ownpace.core.learning.claims import Claim
from ownpace.engines.process.talk import private_files
from ownpace.engines.process.talk.counters import Counters
from ownpace.engines.process.talk.sealed_store import SealedStore

SECRET = "the secret of a run"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.fixture(params=[False, True], ids=["one host", "several hosts"])
def two(request):
    plain = dist.HashStore() if not request.param else dist.TCPStore("127.0.0.1", 0, 1, is_master=True)
    store = SealedStore(plain, SECRET)
    counters = [Counters(store, SECRET, first=rank == 0, spans_hosts=request.param) for rank in range(2)]
    yield counters
    for each in counters:
        each.close()


def test_who_counts_after_the_end_writes_into_no_other_file(tmp_path):
    counters = Counters(SealedStore(dist.HashStore(), SECRET), SECRET, first=True, spans_hosts=False)
    claim = counters.claiming(0, 0)
    counters.close()
    with (tmp_path / "one").open("w+b"), (tmp_path / "two").open("w+b"):  # they get the numbers that are free again
        with pytest.raises(ValueError, match="negative"):
            claim(3)
        assert not (tmp_path / "one").stat().st_size + (tmp_path / "two").stat().st_size


def test_claims_are_what_each_rank_took(two):
    mine, theirs = two[0].claiming(1, 0), two[1].claiming(1, 1)
    assert [mine(3), theirs(5), mine(2), theirs(1)] == [0, 3, 8, 10]
    expected = [Claim(0, 3, 0), Claim(3, 5, 1), Claim(8, 2, 0), Claim(10, 1, 1)]
    assert two[0].claims(1, 2) == two[1].claims(1, 2) == expected


def test_each_loop_has_a_count_and_claims_of_its_own(two):
    assert [two[0].claiming(1, 0)(3), two[1].claiming(2, 1)(4), two[0].claiming(2, 0)(4)] == [0, 0, 4]
    assert two[0].claims(2, 2) == [Claim(0, 4, 1), Claim(4, 4, 0)]
    assert two[0].claims(3, 2) == []


def test_a_share_is_noted_without_a_count(two):
    two[1].note(1, Claim(50, 8, 1))
    assert two[0].claiming(1, 0)(2) == 0
    assert two[0].claims(1, 2) == [Claim(0, 2, 0), Claim(50, 8, 1)]


def test_taking_leaves_no_claim(two):
    take, other = two[0].taking(0), two[1].taking(0)
    assert [take(3), other(2), take(1)] == [0, 3, 5]
    assert two[0].claims(0, 2) == []


def test_no_key_is_left_behind():
    store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True)
    before = store.num_keys()
    counters = Counters(SealedStore(store, SECRET), SECRET, first=True, spans_hosts=False)
    counters.close()
    assert store.num_keys() == before


def test_no_file_is_left_behind():
    counters = Counters(SealedStore(dist.HashStore(), SECRET), SECRET, first=True, spans_hosts=False)
    assert len(list(private_files.folder().iterdir())) == 2
    counters.claiming(0, 0)(8)
    counters.forget_path()
    assert not private_files.folder().exists()
    counters.close()


def test_the_store_tells_nothing_that_leads_to_the_files(tmp_path, monkeypatch):
    """Whoever writes into the store has workers open what it likes, unless the names come from the run's secret."""
    store = SealedStore(dist.HashStore(), SECRET)  # even who could write into this one
    first = Counters(store, SECRET, first=True, spans_hosts=False)
    monkeypatch.setattr("ownpace.engines.process.talk.counters._WORD_S", 0.0)
    victim = tmp_path / "victim"
    victim.write_text("mine")
    files = sorted(path.name for path in private_files.folder().iterdir())
    right = store.get("counter")
    assert not any(right.decode() in name for name in files)
    both = f"{victim}\n{victim}"
    for wrong in (both, str(victim), "../victim", files[0], "", "\0" * 32, "\xff" * 16, "0" * 31, "0" * 33, "A" * 32):
        store.set("counter", wrong)
        with pytest.raises(WireError, match="rank 0 did not write that"):
            Counters(store, SECRET, first=False, spans_hosts=False)
    for mark, secret in (("0" * 32, SECRET), (right.decode(), "another")):
        store.set("counter", mark)
        with pytest.raises(InputError, match=r"are not in .*different users, containers or TMPDIR"):
            Counters(store, secret, first=False, spans_hosts=False)
    assert victim.read_text() == "mine"
    assert sorted(path.name for path in private_files.folder().iterdir()) == files
    first.close()


def test_what_a_stranger_writes_into_the_store_is_no_count(tmp_path):
    store = dist.HashStore()
    counters = Counters(SealedStore(store, SECRET), SECRET, first=True, spans_hosts=True)
    for wrong in ("x", "1", "1 2", "-1 2 ", "1 2 3 ", "1 " + "9" * 5000 + " ", "\xff 1 ", "1.5 2 "):
        store.set("claims/1/0", wrong)
        with pytest.raises(WireError, match=re.escape("of the samples of rank 0: no rank wrote that")):
            counters.claims(1, 1)
    for wrong in ("-5", str(1 << 62)):
        store.set("count/1", wrong)
        with pytest.raises(WireError, match="which no worker of this run has counted"):
            counters.taking(1)(3)
    counters.close()


def test_files_that_went_with_their_generation_are_not_the_users_fault():
    """The first worker has heard that the generation is over, and has left; the word is still on its way to others."""
    store = SealedStore(dist.HashStore(), SECRET)
    Counters(store, SECRET, first=True, spans_hosts=False).close()
    words = iter([None, None, PeerLost("a newer generation begins")])

    def hear() -> None:
        word = next(words)
        if word is not None:
            raise word

    with pytest.raises(PeerLost, match="a newer generation begins"):
        Counters(store, SECRET, first=False, spans_hosts=False, on_wait=hear)


def test_a_store_keeps_counts_and_claims_of_the_latest_generation_alone_and_claims_of_its_latest_loop():
    store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True)
    counters = Counters(SealedStore(store, SECRET), SECRET, first=True, spans_hosts=True)
    for loop in (1, 2, 3):
        for start in (0, 8):
            counters.note(loop, Claim(start, 8, 0))
    assert counters.claims(3, 1) == [Claim(0, 8, 0), Claim(8, 8, 0)]
    assert counters.claims(2, 1) == []
    assert counters.claiming(3, 0)(8) == 0
    counters.forget()
    assert not store.check(["claims/3/0"])
    assert not store.check(["count/3"])


def test_files_of_a_worker_that_was_killed_are_removed_by_the_next_and_no_others():
    held = Counters(store := SealedStore(dist.HashStore(), SECRET), SECRET, first=True, spans_hosts=False)
    in_use = set(private_files.folder().iterdir())
    for name in ("claims-0", "counts-0", "claims-1"):  # closed and still there, as after a kill
        os.close(private_files.create(name))
    os.close(private_files.create("key-0"))  # of another kind
    other = Counters(SealedStore(dist.HashStore(), SECRET), SECRET, first=True, spans_hosts=False)
    assert len(set(private_files.folder().iterdir()) - in_use) == 3
    other.close()
    assert set(private_files.folder().iterdir()) == {*in_use, private_files.folder() / "key-0"}
    Counters(store, SECRET, first=False, spans_hosts=False).close()  # whose names are there until it forgets them
    held.close()
    private_files.remove("key-0")


def test_a_file_that_was_taken_for_abandoned_before_it_was_held_is_not_used(monkeypatch):
    create = private_files.create
    removed: list[str] = []

    def create_and_lose(name, nbytes=0):
        """Another process looks just now."""
        file = create(name, nbytes)
        if not removed:
            removed.append(name)
            private_files.remove_abandoned("claims", "counts")
        return file

    monkeypatch.setattr(private_files, "create", create_and_lose)
    first = Counters(store := SealedStore(dist.HashStore(), SECRET), SECRET, first=True, spans_hosts=False)
    assert not (private_files.folder() / removed[0]).exists()
    second = Counters(store, SECRET, first=False, spans_hosts=False)
    assert [first.claiming(0, 0)(8), second.claiming(0, 1)(8)] == [0, 8]
    second.close()
    first.close()
