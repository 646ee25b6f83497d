"""Gradients, their sums, and what travels with them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ownpace.core.contract.values import (
    Address,
    Contribution,
    Gradient,
    Message,
    Parameters,
    Shard,
    add_up,
    sum_notes,
    union,
)

WHOLE = Shard(0, 0, 2)


def gradient(samples: int, total: float = 1.0, versions: tuple[int, ...] = (0,), seconds: float = 0.0) -> Gradient:
    return Gradient(torch.full((2,), total), samples, versions, loss=total, seconds=seconds)


def test_gradients_add_as_unions_of_samples() -> None:
    a = Gradient(torch.tensor([2.0, 4.0]), 2, (3,), 1.0, 0.5, {"square": 1.0})
    b = Gradient(torch.tensor([10.0, 0.0]), 3, (2,), 2.0, 0.25)
    both = a + b
    assert both.mean.tolist() == pytest.approx([12 / 5, 4 / 5])
    assert (both.samples, both.versions, both.loss, both.seconds) == (5, (2,), 3.0, 0.75)
    assert both.notes == {"square": 1.0}


parts = st.lists(
    st.builds(
        gradient,
        st.integers(0, 20),
        st.integers(-9, 9).map(float),
        st.tuples(st.integers(0, 5), st.integers(0, 5)),
        st.integers(0, 9).map(float),
    ),
    min_size=1,
    max_size=6,
)


@given(parts)
def test_a_union_says_who_contributed_what(gradients: list[Gradient]) -> None:
    total = union(gradients)
    assert total.total.tolist() == [sum(float(part.total[0]) for part in gradients)] * 2
    assert total.samples == sum(part.samples for part in gradients)
    assert total.versions == tuple(min(part.versions[shard] for part in gradients) for shard in range(2))
    assert total.contributions == tuple(Contribution(part.samples, part.seconds, part.samples) for part in gradients)
    assert (total.loss, total.seconds) == (
        sum(part.loss for part in gradients),
        sum(part.seconds for part in gradients),
    )


@given(parts)
def test_a_union_of_unions_keeps_every_contribution(gradients: list[Gradient]) -> None:
    first, second = union(gradients), union(gradients[::-1])
    assert union([first, second]).contributions == first.contributions + second.contributions


@given(parts)
def test_adding_up_changes_none_of_the_parts(gradients: list[Gradient]) -> None:
    before = [part.total.clone() for part in gradients]
    union(gradients)
    assert all(torch.equal(part.total, kept) for part, kept in zip(gradients, before, strict=True))


def test_sums_are_made_from_left_to_right() -> None:
    """Every engine adds in the same order, so that all get the same bits."""
    tensors = [torch.tensor([value]) for value in (1e8, 1.0, -1e8, 1.0)]
    expected = ((tensors[0] + tensors[1]) + tensors[2]) + tensors[3]
    assert torch.equal(add_up(tensors), expected)
    assert not torch.equal(add_up(tensors[::-1]), expected)


def test_the_gradient_of_no_samples_is_neutral() -> None:
    nothing, something = gradient(0, 0.0), gradient(4, 8.0)
    assert nothing.mean.tolist() == [0, 0]
    assert (nothing + something).mean.tolist() == something.mean.tolist() == [2, 2]
    assert nothing.as_contribution.pace == 0


def test_notes_are_summed_by_name() -> None:
    assert sum_notes([{"a": 1.0, "b": 2.0}, {}, {"b": 3.0, "c": 4.0}]) == {"a": 1.0, "b": 5.0, "c": 4.0}
    assert sum_notes([{}, {}]) == {}
    noting = gradient(2).noting(square=3.0)
    assert (noting + noting).notes == union([noting, noting]).notes == {"square": 6.0}
    assert noting.notes == {"square": 3.0}


def test_scaling_leaves_the_count_as_it_is() -> None:
    scaled = gradient(4, 8.0, versions=(3,)).noting(square=1.0).scaled(0.5)
    assert (scaled.mean.tolist(), scaled.samples, scaled.versions) == ([1, 1], 4, (3,))
    assert scaled.notes == {"square": 1.0}


def test_a_corrected_gradient_has_the_given_mean() -> None:
    given = gradient(2, 4.0, versions=(3,)).noting(square=1.5)
    corrected = given.with_mean(torch.tensor([5.0, 6.0]))
    assert corrected.mean.tolist() == [5.0, 6.0]
    assert (corrected.samples, corrected.versions, corrected.loss, corrected.notes) == (2, (3,), 4.0, {"square": 1.5})


def test_whose_samples_a_gradient_holds_survives_whatever_is_made_of_it() -> None:
    mine = gradient(4, versions=(0, 0))
    mine.sources = ((2, 4),)
    other = gradient(3, versions=(0, 0))
    other.sources = ((0, 5), (2, 1))  # two of worker 0's were thrown away
    assert (mine + other).sources == union([mine, other]).sources == ((0, 5), (2, 5))
    assert (mine + mine).sources == ((2, 8),)
    assert union([gradient(0), gradient(0)]).sources == ()
    for same in (mine.scaled(0.5), mine.noting(a=1.0), mine.with_mean(torch.zeros(2)), mine.part(Shard(1, 1, 2))):
        assert same.sources == mine.sources


def test_a_part_is_a_view_with_its_own_version() -> None:
    whole = Gradient(torch.tensor([1.0, 2.0, 3.0]), 4, (7, 5))
    part = whole.part(Shard(1, 1, 3))
    assert (part.total.tolist(), part.samples, part.versions) == ([2.0, 3.0], 4, (5,))
    assert part.total.data_ptr() == whole.total[1:].data_ptr()


@pytest.mark.parametrize(
    ("contribution", "pace"), [(Contribution(10, 2.0), 5.0), (Contribution(0, 2.0), 0.0), (Contribution(10, 0.0), 0.0)]
)
def test_the_pace_of_a_contribution(contribution: Contribution, pace: float) -> None:
    assert contribution.pace == pace


@pytest.mark.parametrize("wanted", ["gradient", "parameters"])
def test_a_message_of_another_kind_names_its_sender(wanted: str) -> None:
    body: dict[str, Gradient | Parameters] = {
        "gradient": gradient(1),
        "parameters": Parameters(torch.zeros(2), 0, WHOLE),
    }
    message = Message(Address("worker", 3, "worker-3", WHOLE), body.pop(wanted), 0, False)
    assert getattr(message, wanted) is message.body
    (other,) = body
    with pytest.raises(AssertionError, match="worker-3 sent"):
        getattr(message, other)


def test_bytes_are_those_of_the_values() -> None:
    values: Tensor = torch.zeros(5, dtype=torch.float64)
    assert Parameters(values, 0, WHOLE).nbytes == Gradient(values, 1, (0,)).nbytes == 40


def test_what_goes_with_a_gradient_does_not_keep_its_numbers_in_memory() -> None:
    bare = gradient(4).without_numbers()
    assert (bare.samples, bare.nbytes, bare.total.untyped_storage().nbytes()) == (4, 0, 0)
