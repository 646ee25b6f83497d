"""Headers of sums: members write into places of their own, the headers are added up, and everything is there again."""

from __future__ import annotations

import math
import struct
from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from ownpace.core.contract.errors import WireError
from ownpace.core.contract.values import Contribution, Gradient
from ownpace.engines.process.talk.header import Numbers, SumHeader, checksum

small = st.integers(0, 1000)
seconds = st.floats(0, 1000)
members = st.lists(st.tuples(small, seconds, small, small, st.booleans()), min_size=1, max_size=5)


def summed(headers: list[Numbers]) -> Numbers:
    return cast(Numbers, np.sum(headers, axis=0, dtype=headers[0].dtype))


def gradient(samples: int, took: float, *versions: int, **notes: float) -> Gradient:
    return Gradient(torch.zeros(1), samples, versions, 0.5 * samples, took, notes)


@given(members)
def test_every_member_is_found_in_the_sum(given_members):
    headers = [SumHeader(member, len(given_members), 2, 1, double=True) for member in range(len(given_members))]
    written = [
        header.write(gradient(samples, took, low, high, square=took), stop, took, [0.1] if number == 0 else ())
        for number, (header, (samples, took, low, high, stop)) in enumerate(zip(headers, given_members, strict=True))
    ]
    said = headers[0].read(summed(written), {"square": 0.0})
    counts = [samples for samples, *_ in given_members]
    times = [took for _, took, *_ in given_members]
    assert said.samples == sum(counts)
    assert said.contributions == tuple(Contribution(n, s, n) for n, s in zip(counts, times, strict=True))
    assert said.versions == (min(low for _, _, low, _, _ in given_members), min(high for *_, high, _ in given_members))
    assert said.seconds == pytest.approx(sum(times))
    assert said.loss == pytest.approx(0.5 * sum(counts))
    assert said.notes == {"square": pytest.approx(sum(times))}
    assert said.stop == any(stop for *_, stop in given_members)
    assert said.last_came_s == max(times)
    assert said.settings == (0.1,)  # of the first member, for all


def bits(numbers: tuple[float, ...]) -> bytes:
    return struct.pack(f"<{len(numbers)}d", *numbers)


any_float = st.binary(min_size=8, max_size=8).map(lambda raw: cast(float, struct.unpack("<d", raw)[0]))
AWKWARD = (1e-300, 5e-324, -0.0, 0.1, float("inf"), float("-inf"), float("nan"), 1.7976931348623157e308)


@given(st.lists(any_float, min_size=1, max_size=30), st.booleans(), st.integers(0, 2))
@example(list(AWKWARD), False, 0)
def test_settings_come_back_bit_for_bit(settings, double, spokesman):
    headers = [SumHeader(member, 3, 1, len(settings), double=double) for member in range(3)]
    for given_settings in (tuple(settings), tuple(reversed(settings))):  # what was kept of the first must not return
        written = [
            header.write(gradient(1, 0.5, 2), False, 0.0, given_settings if member == spokesman else ())
            for member, header in enumerate(headers)
        ]
        assert all(header.dtype == (np.float64 if double else np.float32) for header in written)
        for header in headers:
            said = header.read(summed(written), {})
            assert bits(said.settings) == bits(given_settings)
            assert (said.samples, said.versions) == (3, (2,))


def test_settings_that_nobody_wrote_are_none_and_not_zeros():
    headers = [SumHeader(member, 2, 1, 3) for member in range(2)]
    written = [header.write(gradient(1, 0.5, 2), False, 0.0, ()) for header in headers]
    assert headers[0].read(summed(written), {}).settings == ()
    with_zeros = [headers[0].write(None, False, 0.0, (0.0, 0.0, 0.0)), written[1]]
    assert headers[0].read(summed(with_zeros), {}).settings == (0.0, 0.0, 0.0)


def test_settings_that_have_not_changed_are_the_same_object():
    header = SumHeader(0, 1, 1, 2)
    settings = (0.1, 0.9)
    first, second = (header.read(header.write(None, False, 0.0, settings), {}).settings for _ in range(2))
    assert first is second
    assert first == settings


def test_a_member_without_a_gradient_adds_nothing():
    headers = [SumHeader(member, 2, 1, 0) for member in range(2)]
    written = [headers[0].write(None, False, 3.0, ()), headers[1].write(gradient(4, 0.5, 7), False, 1.0, ())]
    said = headers[0].read(summed(written), {})
    assert (said.samples, said.versions, said.last_came_s) == (4, (7,), 3.0)
    assert said.contributions == (Contribution(0, 0.0), Contribution(4, 0.5, 4))


def test_notes_with_other_names_are_not_mixed_up():
    headers = [SumHeader(member, 2, 1, 0) for member in range(2)]
    written = [
        header.write(gradient(1, 0.1, 0, **notes), False, 0.0, ())
        for header, notes in zip(headers, ({"norm": 1.0}, {"square": 2.0}), strict=True)
    ]
    with pytest.raises(ValueError, match="noted different things"):
        headers[0].read(summed(written), {"norm": 1.0})


def test_too_many_notes_are_refused():
    header = SumHeader(0, 1, 1, 0)
    with pytest.raises(ValueError, match="at most 34 can travel"):
        header.write(gradient(1, 0.1, 0, **{f"n{i}": 1.0 for i in range(35)}), False, 0.0, ())


@given(st.dictionaries(st.text(max_size=5), st.just(0.0), min_size=1, max_size=5))
def test_checksums_survive_single_precision(notes):
    assert checksum(notes) == float(torch.tensor(checksum(notes), dtype=torch.float32)) > 0
    assert checksum(dict(reversed(notes.items()))) == checksum(notes)


def test_members_say_how_many_samples_they_are_done_with():
    """Those of one model's step after another's are not new; what was thrown away counts."""
    headers = [SumHeader(member, 2, 1, 0, 3) for member in range(2)]
    first = Gradient(torch.zeros(1), 8, (0,), counts=(8, 8, 0), dropped=5)
    second = Gradient(torch.zeros(1), 8, (0,), counts=(0, 0, 8))
    written = [headers[0].write(first, False, 0.0, ()), headers[1].write(second, False, 0.0, ())]
    said = headers[0].read(summed(written), {})
    assert [part.used for part in said.contributions] == [13, 0]
    assert [part.samples for part in said.contributions] == [8, 8]


def test_a_sum_says_whose_samples_it_holds_whoever_passes_them_on():
    """A communicator brings what its whole subgroup has computed."""
    headers = [SumHeader(member, 2, 1, 2, 0, 4) for member in range(2)]
    parts = [
        Gradient(torch.zeros(1), 12, (0,), notes={"norm": 1.0}, sources=((0, 8), (1, 4))),
        Gradient(torch.zeros(1), 6, (0,), notes={"norm": 2.0}, sources=((3, 6),)),
    ]
    written = [headers[0].write(parts[0], False, 0.0, (0.5, 0.25)), headers[1].write(parts[1], False, 0.0, ())]
    said = headers[1].read(summed(written), {"norm": 0.0})
    assert said.sources == ((0, 8), (1, 4), (3, 6))
    assert (said.notes, said.settings) == ({"norm": 3.0}, (0.5, 0.25))


@given(st.lists(st.floats(width=32), max_size=120), st.booleans())
def test_whatever_comes_with_a_sum_is_read_or_refused(numbers, double):
    """gloo has no lock: anything may stand where members write."""
    header = SumHeader(0, 2, 2, 0, num_counts=1, num_workers=2, double=double)
    came: Numbers = np.zeros(header.size, np.float64) if double else np.zeros(header.size, np.float32)
    came[: min(len(numbers), header.size)] = numbers[: header.size]
    try:
        words = str(header.read(came, {}).samples)
    except (WireError, ValueError) as error:
        words = str(error)
    assert words.lstrip("-").isdecimal() or "no member wrote that" in words or "noted different things" in words


def test_a_loss_that_is_infinite_both_ways_is_no_number():
    headers = [SumHeader(member, 2, 1, 0) for member in range(2)]
    written = [header.write(gradient(1, 0.5, 2), False, 0.0, ()) for header in headers]
    written[0][headers[0].loss_at], written[1][headers[1].loss_at] = math.inf, -math.inf
    assert math.isnan(headers[0].read(summed(written), {}).loss)


@pytest.mark.parametrize("count", [math.nan, math.inf, -math.inf])
def test_a_count_that_is_no_number_is_refused(count):
    header = SumHeader(0, 1, 1, 0)
    written = header.write(gradient(1, 0.5, 2), False, 0.0, ())
    for place in range(len(written)):
        if written[place] == 2:  # the version
            written[place] = count
    with pytest.raises(WireError, match=f"a sum came with {count} as a count: no member wrote that"):
        header.read(written, {})
