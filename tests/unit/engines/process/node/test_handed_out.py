"""Samples are counted once: in a gradient, or as dropped."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ownpace.engines.process.node.handed_out import HandedOut


def test_a_batch_without_a_gradient_is_dropped():
    out = HandedOut(1)
    assert out.add(8, [False])
    assert out.add(5, [False])  # `continue`
    assert (out.waiting, out.new, out.dropped) == ([5], 5, 8)
    out.bring(0)
    assert (out.waiting, out.new, out.dropped) == ([0], 0, 8)


def test_batches_with_gradients_are_accumulated():
    out = HandedOut(1)
    out.add(8, [False])
    assert not out.add(5, [True])
    assert (out.waiting, out.new, out.dropped) == ([13], 13, 0)


def test_what_was_thrown_away_later_is_dropped():
    out = HandedOut(1)
    out.add(8, [False])
    out.add(5, [True])
    assert out.throw_away(0)
    assert (out.waiting, out.new, out.dropped) == ([5], 5, 8)
    out.add(3, [True])
    assert (out.waiting, out.new, out.dropped) == ([8], 8, 8)


def test_what_one_model_throws_away_another_may_keep():
    out = HandedOut(2)
    out.add(8, [False, False])
    out.add(5, [True, True])
    assert not out.throw_away(0)
    assert (out.waiting, out.new, out.dropped) == ([5, 13], 13, 0)
    out.bring(1)
    assert out.throw_away(1)  # a backward pass of the other model has come by
    assert (out.waiting, out.new, out.dropped) == ([5, 0], 0, 0)


def test_what_is_left_at_the_end_is_dropped_unless_it_has_gone_out():
    out = HandedOut(2)
    out.add(8, [False, False])
    out.give_up(but=0)
    assert (out.waiting, out.new, out.dropped) == ([0, 0], 0, 8)
    out.add(5, [False, False])
    out.give_up(but=5)
    assert out.dropped == 8


@given(st.lists(st.tuples(st.integers(1, 9), *[st.booleans()] * 5), max_size=20))
def test_every_sample_is_brought_or_dropped(batches):
    """With two models: each batch may be skipped, or learnt from by one of them, or by both, in any order."""
    out = HandedOut(2)
    brought = dropped = total = 0
    gradients = [False, False]
    for samples, first, second, skip, keeps, throws in batches:
        out.add(samples, gradients)
        total += samples
        if throws:
            out.throw_away(first)
        gradients = [keeps, keeps]
        if skip:
            continue
        for model, learns in enumerate((first, second)):
            if learns:
                brought, dropped = brought + out.new, dropped + out.dropped
                out.dropped = 0
                out.bring(model)
    out.give_up(but=0)
    assert brought + dropped + out.dropped == total
