"""What goes layer by layer is put together again, and nothing else is."""

from __future__ import annotations

import pytest
import torch

from ownpace.core.contract.errors import WireError
from ownpace.core.contract.values import Gradient, Parameters, Shard
from ownpace.engines.process.node.parts import Assembly
from ownpace.engines.process.talk.wire import Packet

SIZES = {0: (2, 3, 1)}


def bucket(part: int, *values: float, version: int = 4) -> Packet:
    return Packet(Parameters(torch.tensor(values), version, Shard(0, 0, 6)), part=part, num_parts=3)


def pushed(part: int, *values: float) -> Packet:
    return Packet(Gradient(torch.tensor(values), 8, (4,)), part=part, num_parts=3)


def test_buckets_go_to_their_places_in_any_order():
    assembly = Assembly(SIZES, own=0)
    for part, values in ((2, (6.0,)), (1, (3.0, 4.0, 5.0)), (0, (1.0, 2.0))):
        parts = assembly.take("worker-0", pushed(part, *values))
        assert parts.is_complete == (part == 0)
    assert parts.values.tolist() == [1, 2, 3, 4, 5, 6]
    assert parts.said is not None
    assert parts.said.part == 0


def test_each_sender_has_its_own_message_and_the_next_begins_anew():
    assembly = Assembly(SIZES, own=None)
    first = assembly.take("server-0", bucket(0, 1.0, 2.0))
    other = assembly.take("server-1", bucket(0, 7.0, 7.0))
    assert other is not first
    assembly.take("server-0", bucket(1, 3.0, 4.0, 5.0))
    assert first.arrived == [True, True, False]
    assert assembly.take("server-0", bucket(2, 6.0)) is first
    assert assembly.take("server-0", bucket(0, 1.0, 2.0)) is not first
    assembly.clear()
    assert assembly.take("server-1", bucket(1, 7.0, 7.0, 7.0)).arrived == [False, True, False]


@pytest.mark.parametrize("packet", [bucket(0, 1.0, 2.0), pushed(1, 3.0, 4.0, 5.0)])
def test_a_bucket_of_another_message_names_its_sender(packet):
    assembly = Assembly(SIZES, own=0)
    assembly.take("server-0", bucket(0, 1.0, 2.0))
    with pytest.raises(
        WireError, match=r"server-0 sent what no node sends: bucket \d of 3, which is of another message"
    ):
        assembly.take("server-0", packet)
