"""A store that anyone can write into, and whose readers take only what the run's own ranks wrote."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from ownpace.core.contract.errors import WireError
from ownpace.engines.process.meet.rendezvous import LOOPBACK, local_store
from ownpace.engines.process.talk.channels import Channels, Wiring, finish
from ownpace.engines.process.talk.sealed_store import SealedStore

KEYS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=30)


@given(KEYS, st.text() | st.binary())
def test_what_is_written_is_read(key, value):
    plain = dist.HashStore()
    SealedStore(plain, "secret").set(key, value)
    expected = value.encode() if isinstance(value, str) else value
    reader = SealedStore(plain, "secret")
    assert reader.get(key) == expected
    assert reader.multi_get([key, key]) == [expected, expected]
    with pytest.raises(WireError, match="that no rank of this run wrote"):
        SealedStore(plain, "another").get(key)


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_what_others_write_is_refused(value, other):
    plain: Any = dist.HashStore()
    store = SealedStore(plain, "secret")
    store.set("address", value)
    sealed = plain.get("address")
    # A value of one key is none of another; nor is one that was changed or cut.
    for forged in (other, value, sealed[:-1], sealed + b"\0", sealed[:16] + other, bytes(16) + value):
        if forged != sealed:
            plain.set("address", forged)
            with pytest.raises(WireError, match="'address'"):
                store.get("address")
    plain.set("address2", sealed)
    with pytest.raises(WireError):
        store.get("address2")


def test_what_was_written_in_one_part_is_not_taken_for_another():
    plain: Any = dist.HashStore()
    first, second = (SealedStore(plain, "secret").within(f"generation/{number}") for number in (1, 2))
    first.set("address", "here")
    assert first.get("address") == SealedStore(plain, "secret").get("generation/1/address") == b"here"
    plain.set("generation/2/address", plain.get("generation/1/address"))
    with pytest.raises(WireError):
        second.get("address")


def test_a_group_connects_through_it_and_not_to_an_address_that_a_stranger_wrote():
    own, _ = local_store()
    stores: list[Any] = [dist.TCPStore(LOOPBACK, own.port, is_master=False, wait_for_workers=False) for _ in range(2)]

    def take_part(name: str, member: int) -> float:
        channels = Channels(name, member, 2, Wiring(SealedStore(stores[member], "secret"), "gloo", LOOPBACK, 60), 1)
        values = torch.full((3,), 1.0 + member)
        finish(channels.all_reduce(values), name, lambda: None)
        channels.close()
        return values[0].item()

    with ThreadPoolExecutor(2) as members:
        assert list(members.map(take_part, 2 * ["workers"], range(2))) == [3.0, 3.0]
    # The same address for a group that is to be: member 1 is there, but the address is not of its writing.
    (address,) = (key for key in own.list_keys() if key.endswith("group/workers/0/0/1"))
    SealedStore(stores[1], "secret").set("group/others/here/1", "")
    stores[1].set(address.replace("workers", "others"), stores[1].get(address))
    with pytest.raises(WireError, match="group/others/0/0/1' that no rank of this run wrote"):
        take_part("others", 0)


def test_who_waits_for_a_key_keeps_no_other_thread_from_the_store_and_can_be_told_to_stop():
    store, _ = local_store()
    over = threading.Event()
    sealed = SealedStore(store, "secret").until(over)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(sealed.get, "of a member that died")
        time.sleep(0.05)  # most likely it waits by now; if it does not, this test passes without saying anything
        with ThreadPoolExecutor(1) as other:
            assert not other.submit(sealed.check, ["another"]).result(30)
        over.set()
        with pytest.raises(RuntimeError, match="of a member that died"):
            waiting.result(30)


def test_what_was_written_to_meet_is_forgotten_with_the_generation():
    """A run may have thousands of generations, and the store keeps what nobody removes."""
    own, _ = local_store()
    before = own.num_keys()
    stores = []
    for _ in range(2):
        client = dist.TCPStore(LOOPBACK, own.port, is_master=False, wait_for_workers=False)
        stores.append(SealedStore(client, "secret").within("generation/7"))
    stores[0].set("counter", "of the first")

    def connect(member: int) -> Channels:
        return Channels("workers", member, 2, Wiring(stores[member], "gloo", LOOPBACK, 60), 2)

    with ThreadPoolExecutor(2) as threads:
        made = list(threads.map(connect, range(2)))
    assert own.num_keys() > before + 5
    for store in stores:
        store.forget()
        store.forget()
    assert own.num_keys() == before
    for channels in made:
        channels.close()


def test_what_a_dead_member_has_written_is_forgotten_by_the_others():
    own, _ = local_store()
    before = own.num_keys()
    dead, survivor = (SealedStore(own, "secret").within("generation/7") for _ in range(2))

    def connect(store: SealedStore) -> Channels:
        return Channels("workers", [survivor, dead].index(store), 2, Wiring(store, "gloo", LOOPBACK, 60), 2)

    with ThreadPoolExecutor(2) as threads:
        made = list(threads.map(connect, [survivor, dead]))
    survivor.forget(of_others=True)
    assert own.num_keys() == before
    for channels in made:
        channels.close()
