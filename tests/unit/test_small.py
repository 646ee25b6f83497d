"""Schedules, sampling, settings, events."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ownpace.core.contract import events
from ownpace.core.contract.errors import InputError
from ownpace.core.learning.sampling import Queue, make_sampler
from ownpace.core.learning.schedule import Schedule
from ownpace.core.settings import build


def test_schedules():
    assert Schedule().factor(123, 1000) == 1
    assert Schedule(warmup_samples=100).factor(25, None) == 0.25
    assert Schedule(shape="linear").factor(250, 1000) == 0.75
    assert Schedule(shape="cosine").factor(500, 1000) == pytest.approx(0.5)
    step = Schedule(shape="step")
    assert [step.factor(n, 1000) for n in (0, 499, 500, 750)] == pytest.approx([1, 1, 0.1, 0.01])


@given(size=st.integers(1, 40), chunks=st.lists(st.integers(1, 30), min_size=1, max_size=40), seed=st.integers(0, 9))
def test_queue_hands_out_every_sample_once_an_epoch_in_chunks_of_any_size(size, chunks, seed):
    queue = Queue(size, seed)
    drawn = torch.cat([queue.draw(index % 3, chunk) for index, chunk in enumerate(chunks)]).tolist()
    assert len(drawn) == sum(chunks)
    for start in range(0, len(drawn) - size + 1, size):
        assert sorted(drawn[start : start + size]) == list(range(size))
    rest = Counter(drawn[len(drawn) // size * size :])
    assert max(rest.values(), default=0) <= 1


def test_shards_are_disjoint_and_cover_everything():
    sampler = make_sampler("shards", 10, 3, seed=0)
    drawn = [set(sampler.draw(rank, 12).tolist()) for rank in range(3)]
    assert set.union(*drawn) == set(range(10))
    assert sum(map(len, drawn)) == 10


def test_iid_draws_differ_by_worker_and_seed():
    first = make_sampler("iid", 1000, 2, seed=0)
    again = make_sampler("iid", 1000, 2, seed=0)
    other = make_sampler("iid", 1000, 2, seed=1)
    a, b = first.draw(0, 50), first.draw(1, 50)
    assert not torch.equal(a, b)
    assert torch.equal(a, again.draw(0, 50))
    assert not torch.equal(a, other.draw(0, 50))


@dataclass(frozen=True)
class Example:
    number: int
    share: float = 0.5
    on: bool = False
    kind: Literal["a", "b"] = "a"
    most: int | None = None


def test_build_takes_strings_and_values():
    built = build(Example, {"number": "3", "share": 1, "on": "yes", "kind": "b", "most": "7"}, where="here")
    assert built == Example(3, 1.0, True, "b", 7)
    assert build(Example, {"number": 3, "most": "none"}, where="here").most is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"nmber": 1}, "unknown key in here: 'nmber'; did you mean 'number'?"),
        ({}, "here lacks number"),
        ({"number": "x"}, "number in here is 'x'; it must be a whole number"),
        ({"number": 1.5}, "it must be a whole number"),
        ({"number": True}, "it must be a whole number"),
        ({"number": 1, "kind": "c"}, "kind in here is 'c'; allowed: a, b"),
        ({"number": 1, "on": "maybe"}, "it must be true or false"),
    ],
)
def test_build_refuses(given, message):
    with pytest.raises(InputError) as caught:
        build(Example, given, where="here")
    assert message in str(caught.value)


def test_events_survive_the_file():
    happened: list[events.Event] = [
        events.Run("sync", "virtual", "digits", "mlp", 0, 8, 8, 10, 40, 100, 0.9, {"workers": ["worker-0"]}),
        events.Load(0.0, 0.1, "worker-0", 8),
        events.Compute(0.1, 1 / 3, "worker-0", 8, 0),
        events.Transfer(1 / 3, 0.5, "all-reduce", "workers", 40),
        events.Wait(1 / 3, 0.5, "worker-0", "all-reduce"),
        events.Update(0.5, "worker-0", 1, 8, 8, 0),
        events.Evaluation(0.5, 8, 1, 0.25, None),
        events.Fault(0.6, "worker-0", "kill"),
        events.End(0.6, "dead", events.Sums(0.6, 8, 1, 0.0, 0, 10.0, {"worker-0": events.Tally(8, 0.2, 0.1)})),
    ]
    assert [events.from_line(events.to_line(event)) for event in happened] == happened


def test_a_cut_off_event_file_is_named(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text('{"kind":"fault","t":1.0,"who":"a","what":"kill"}\n{"kind":"wai', encoding="utf-8")
    with pytest.raises(InputError, match="line 2, is not an event"):
        list(events.read_events(path))
    with pytest.raises(InputError, match="there is no event file"):
        list(events.read_events(tmp_path / "nowhere"))
