"""What travels with a gradient besides its numbers: whether layers may be absent, and whose samples it is of."""

from __future__ import annotations

import pytest
import torch
import zmq

from ownpace.core.contract.values import Gradient, Shard
from ownpace.engines.process.talk.header import SumHeader
from ownpace.engines.process.talk.wire import Packet, pack, unpack
from ownpace.engines.process.talk.wire_header import Limits


def gradient(samples: int, *, partial: bool, counts: tuple[int, ...] = ()) -> Gradient:
    return Gradient(torch.zeros(2), samples, (0,), 0.0, partial=partial, counts=counts)


@pytest.mark.parametrize("partial", [(False, False), (True, False), (False, True)])
def test_a_sum_is_partial_if_one_member_is(partial: tuple[bool, bool]) -> None:
    headers = [SumHeader(member, 2, 1, 1, 3) for member in range(2)]
    given = [gradient(8, partial=partial[0], counts=(8, 8, 0)), gradient(4, partial=partial[1], counts=(0, 0, 4))]
    written = [header.write(one, False, 0.0, (0.5,)) for header, one in zip(headers, given, strict=True)]
    said = headers[0].read(written[0] + written[1], {})
    assert said.partial == any(partial)
    assert (said.samples, said.counts) == (12, (8, 8, 4))


def test_a_member_without_samples_adds_none_to_any_model() -> None:
    headers = [SumHeader(member, 2, 1, 0, 3) for member in range(2)]
    given = [gradient(8, partial=True, counts=(8, 0, 8)), gradient(0, partial=False)]
    written = [header.write(one, False, 0.0, ()) for header, one in zip(headers, given, strict=True)]
    said = headers[0].read(written[0] + written[1], {})
    assert (said.samples, said.counts) == (8, (8, 0, 8))


@pytest.mark.parametrize("partial", [False, True])
def test_a_message_says_whether_layers_may_be_absent(partial: bool) -> None:
    frames = [zmq.Frame(bytes(part)) for part in pack(Packet(gradient(8, partial=partial)))]
    body = unpack(frames, Limits([Shard(0, 0, 2)], 2)).body
    assert isinstance(body, Gradient)
    assert body.partial == partial
