"""What each rank gets of every kind of data."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from math import inf
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.drop_in.a_fleet import AFleet, flat, in_turn, numbers
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

from ownpace.core.contract.errors import InputError
from ownpace.core.learning.claims import left_over
from ownpace.drop_in.data import Asked, read_data
from ownpace.drop_in.feeds import Member, StreamFeed
from ownpace.drop_in.loops import LoopPlan


class Stream(IterableDataset[int]):
    """Numbers in an order that its random numbers decide; several workers divide them."""

    def __init__(self, size: int, *, shuffle: bool = False) -> None:
        self.size = size
        self.shuffle = shuffle

    def __iter__(self):
        info = get_worker_info()
        items = range(self.size) if info is None else range(info.id, self.size, info.num_workers)
        return iter(random.sample(items, len(items)) if self.shuffle else items)


class Ragged(Dataset[dict[str, Any]]):
    """As tokenizers give them."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": [index] * (1 + index % 5), "label": index, "text": f"text {index}"}


def pad(samples: list[dict[str, Any]]) -> dict[str, Any]:
    longest = max(len(sample["input_ids"]) for sample in samples)
    ids = [sample["input_ids"] + [-1] * (longest - len(sample["input_ids"])) for sample in samples]
    return {"input_ids": torch.tensor(ids), "labels": torch.tensor([sample["label"] for sample in samples])}


@given(
    size=st.integers(1, 40),
    wanted=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    epochs=st.integers(1, 3),
    shuffle=st.booleans(),
)
@settings(max_examples=40)
def test_every_sample_comes_exactly_once_an_epoch(size, wanted, epochs, shuffle):
    got = AFleet(*wanted).deal(range(size), epochs=epochs, shuffle=shuffle)
    assert Counter(flat(got)) == dict.fromkeys(range(size), epochs)


@pytest.mark.parametrize(
    "data",
    [
        [*range(37)],
        torch.arange(37),
        DataLoader(range(37), 4, shuffle=True),  # type: ignore[arg-type]  # as many scripts have it
        Stream(37),
        range(37).__iter__,
        DataLoader(Stream(37), 4),
        {*range(37)},
        (number for number in range(37)),
        map(int, range(37)),
    ],
    ids=lambda data: type(data).__name__,
)
def test_every_kind_of_data_is_dealt_out_once(data):
    if callable(data):
        data = type("Iterable", (), {"__iter__": lambda self: numbers(37)})()
    one_shot = hasattr(data, "__next__")
    fleet = AFleet(3) if one_shot else AFleet(3, 5, 1)
    assert sorted(flat(fleet.deal(data))) == list(range(37))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_is_read_alike_by_all_ranks_whatever_it_draws(workers, shuffle):
    random.seed(torch.seed())
    fleet = AFleet(3, 5)
    batches = fleet.batches(Stream(40, shuffle=shuffle), epochs=2, num_workers=workers)
    before = random.getstate()
    got = in_turn(batches)
    assert random.getstate() == before
    assert Counter(flat(got)) == dict.fromkeys(range(40), 2)
    assert batches[0].fingerprint() == batches[1].fingerprint()


def test_a_stream_that_is_another_on_each_rank_is_taken_whole():
    got = AFleet(3, 5).deal(lambda rank: range(100 * rank, 100 * rank + 11).__iter__(), each=True, sharded=True)
    assert [flat([mine]) for mine in got] == [[*range(11)], [*range(100, 111)]]


def test_data_comes_in_order_if_it_is_not_shuffled():
    assert AFleet(3).deal(range(7), shuffle=False)[0][0].tolist() == [0, 1, 2]
    assert flat(AFleet(3).deal(range(7), shuffle=False, epochs=2)) == [*range(7), *range(7)]
    assert flat(AFleet(3).deal(DataLoader(range(7), 3))) == [*range(7)]  # type: ignore[arg-type]
    assert flat(AFleet(3).deal(DataLoader(range(7), 3), shuffle=True)) != [*range(7)]  # type: ignore[arg-type]


def test_what_does_not_fill_a_batch_is_left_out():
    assert [len(batch) for batch in AFleet(4).deal(range(11), drop_last=True)[0]] == [4, 4]
    assert [len(batch) for batch in AFleet(8).deal(range(23), 4, drop_last=True)[0]] == [8, 8, 4]
    assert [len(batch) for batch in AFleet(4).deal(Stream(11), drop_last=True)[0]] == [4, 4]
    assert [len(batch) for batch in AFleet(4).deal(DataLoader(Stream(11), 4, drop_last=True), None)[0]] == [4, 4]
    assert len(AFleet(4, 4).batches(range(23), 4, drop_last=True)[0]) == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_a_weighted_sampler_is_followed_by_all_ranks_together(workers):
    sampler = WeightedRandomSampler([0.0] * 10 + [1.0] * 10, 60)
    loader: DataLoader[int] = DataLoader(range(20), 4, sampler=sampler, num_workers=workers)  # type: ignore[arg-type]
    fleet = AFleet(3, 5)
    batches = fleet.batches(loader, None)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = batches[0].fingerprint()
    torch.manual_seed(2)  # ranks need not be seeded alike
    assert batches[1].fingerprint() == first
    torch.manual_seed(1)
    got = in_turn(batches)
    assert torch.equal(torch.get_rng_state(), before)
    assert len(flat(got)) == 60
    assert min(flat(got)) >= 10
    assert flat(in_turn(batches)) != flat(got)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_sampler_with_a_generator_of_its_own(seed):
    def fleet_with(seed: int) -> list[int]:
        fleet = AFleet(4)
        sampler = SubsetRandomSampler(range(5, 15), generator=torch.Generator().manual_seed(seed))
        return flat(fleet.deal(range(20), sampler=sampler, epochs=2))

    got = fleet_with(seed)
    assert sorted(got[:10]) == sorted(got[10:]) == [*range(5, 15)]
    assert got[:10] != got[10:]
    assert got == fleet_with(seed) != fleet_with(seed + 1)


def test_a_sampler_without_end_is_read_lazily():
    class Endless:
        def __iter__(self):
            return itertools.cycle([7, 8])

    for sampler in (Endless(), [7, 8]):
        fleet = AFleet(3, 5)
        assert Counter(flat(fleet.deal(range(10), sampler=sampler, samples=40))) == {7: 20, 8: 20}
        assert fleet.ranks[0].begun[0].places == 40


@pytest.mark.parametrize(
    ("sampler", "expected"),
    [
        (SequentialSampler(range(9)), {"order": "as it comes"}),
        (RandomSampler(range(9)), {"order": "shuffled"}),
        (DistributedSampler(range(9), 2, 1, shuffle=False), {"order": "as it comes"}),  # type: ignore[arg-type]
        (DistributedSampler(range(9), 2, 0), {"order": "shuffled"}),  # type: ignore[arg-type]
    ],
    ids=lambda value: type(value).__name__,
)
def test_usual_samplers_mean_what_the_fleet_does_itself(sampler, expected):
    loader: DataLoader[int] = DataLoader(range(9), 4, sampler=sampler)  # type: ignore[arg-type]
    for (batches,) in (AFleet(4).batches(loader, None), AFleet(4).batches(range(9), sampler=sampler)):
        if expected["order"] not in batches.fingerprint()["order"]:
            assert "Sampler" in batches.fingerprint()["order"]  # given as such, torch's own are followed
        assert sorted(flat(in_turn([batches]))) == list(range(9))


def test_a_loader_brings_its_settings_and_arguments_override_them():
    loader = DataLoader(Ragged(), 5, collate_fn=pad, num_workers=2, persistent_workers=True, drop_last=True)
    (batches,) = AFleet(5).batches(loader, None)
    assert batches.dataset is loader.dataset
    assert len(batches) == 4
    for _ in range(2):  # the same workers
        got = in_turn([batches])[0]
        assert sorted(label for batch in got for label in batch["labels"].tolist()) == list(range(20))
        assert all(batch["input_ids"].shape[0] == 5 for batch in got)
    (batches,) = AFleet(3).batches(loader, 3, num_workers=0, drop_last=False)
    assert [len(batch["labels"]) for batch in in_turn([batches])[0]] == [3] * 6 + [2]


def test_workers_persist_from_one_loop_to_the_next():
    class Where(Dataset[int]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> int:
            import os

            return os.getpid()

    (batches,) = AFleet(4).batches(Where(), num_workers=1, persistent_workers=True)
    pids = [set(flat(in_turn([batches]))) for _ in range(2)]
    assert pids[0] == pids[1]
    (batches,) = AFleet(4).batches(Where(), num_workers=1)
    assert not set(flat(in_turn([batches]))) & set(flat(in_turn([batches])))


def test_ranks_that_are_seeded_alike_augment_differently():
    class Augmented(Dataset[float]):
        def __len__(self) -> int:
            return 16

        def __getitem__(self, index: int) -> float:
            return float(torch.rand(()))

    fleet = AFleet(4, 4)
    torch.manual_seed(0)
    batches = fleet.batches(Augmented(), num_workers=1)
    got = in_turn(batches)
    drawn = [float(value) for batch in itertools.chain(*got) for value in batch]
    assert len(set(drawn)) == 16


@pytest.mark.parametrize("draw", [lambda: torch.rand(4), lambda: np.random.rand(4), lambda: [random.random()] * 4])
def test_a_function_draws_others_on_every_rank_and_leaves_the_script_its_own(draw):
    fleet = AFleet(4, 4)
    torch.manual_seed(0), np.random.seed(0), random.seed(0)
    expected = torch.rand(1), np.random.rand(), random.random()
    torch.manual_seed(0), np.random.seed(0), random.seed(0)
    got = fleet.deal(lambda: draw(), samples=40)
    assert (torch.rand(1), np.random.rand(), random.random()) == expected
    assert [len(mine) for mine in got] == [5, 5]
    assert len({float(batch[0]) for mine in got for batch in mine}) == 10
    again = AFleet(4, 4).deal(lambda: draw(), samples=40)
    assert [[float(batch[0]) for batch in mine] for mine in again] == [[float(b[0]) for b in mine] for mine in got]


def test_a_function_is_told_how_many_samples_are_wanted():
    got = AFleet(4, 7).deal(lambda batch_size: torch.arange(batch_size), samples=40)
    assert {len(batch) for batch in got[0]} == {4}
    assert [len(batch) for batch in got[1]] == [7, 7, 7, 3]
    assert len(flat(got)) == 40
    # One that is not told makes whole batches only.
    assert len(flat(AFleet(4, 7).deal(lambda: torch.randint(1000, (4,)), samples=42))) == 40


def test_a_function_that_gives_ranks_the_same_is_warned_of():
    generators = [random.Random(0) for _ in range(2)]
    fleet = AFleet(4, 4)
    with pytest.warns(UserWarning, match=r"the same batches on ranks 0 and 1; .* seed that by fleet\.rank"):
        fleet.deal(lambda rank: lambda: [generators[rank].random() for _ in range(4)], each=True, samples=40)


def get_batch(split):
    return torch.zeros(4)


@pytest.mark.parametrize(
    ("data", "asked", "message"),
    [
        (get_batch, {}, r"get_batch\(split\).* lambda: get_batch\(…\)"),
        (lambda: torch.zeros(5, 3), {}, r"was to give 4 samples, but gave tensors of shape \(5, 3\)"),
        (lambda: torch.zeros(4), {"epochs": 2}, "epochs does not go with a function"),
        (lambda: torch.zeros(4), {"num_workers": 2}, "num_workers does not go with a function"),
        (lambda: torch.zeros(4), {"shuffle": True}, "shuffle does not go with a function"),
        (numbers(4), {"epochs": 2}, "an iterator, which can be read once"),
        (numbers(4), {"num_workers": 1}, "an iterator, which can be read once"),
        (Stream(4), {"shuffle": True}, "shuffle does not go with a stream"),
        (Stream(4), {"sampler": [1]}, "sampler does not go with a stream"),
        (Stream(4), {"sampling": "iid"}, "sampling='iid' does not go with a stream"),
        (range(4), {"sampling": "queu"}, "unknown sampling 'queu'; did you mean 'queue'"),
        (range(4), {"num_worker": 1}, "unknown argument of fleet.batches 'num_worker'; did you mean 'num_workers'"),
        (range(4), {"suffle": 1}, "did you mean 'shuffle'"),
        (range(4), {"batch_sampler": [[1]]}, "the algorithm decides how many samples a batch has"),
        (range(4), {"sampler": BatchSampler(range(4), 2, False)}, "is a BatchSampler"),
        (range(4), {"sampler": [1], "shuffle": True}, "both sampler and shuffle"),
        (range(4), {"sampler": [1], "sampling": "iid"}, "a sampler decides who gets which sample"),
        (range(4), {"shuffle": False, "sampling": "iid"}, "draws at random"),
        (range(4), {"sharded": True}, "say sampling='shards'"),
        (range(4), {"num_workers": -1}, "torch's DataLoader refuses"),
        (range(4), {"updates": 0}, "updates is 0"),
        (range(0), {}, "without any samples"),
        ((torch.zeros(4), torch.zeros(4)), {}, r"a tuple, which is no data set; give TensorDataset\(x, y\)"),
        ({"train": range(4)}, {}, "a dict, which is no data set; give one of its values"),
        ("train.csv", {}, "a str, which is no data set"),
        (7, {}, "was given int; give a data set"),
        (Dataset, {}, "was given Dataset; give a data set"),
        (Dataset(), {}, "Dataset has no length"),
        (DataLoader(range(4), batch_sampler=[[0, 1]]), {}, r"batch_sampler of its own \(list\)"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(data, asked, message):
    with pytest.raises(InputError, match=message) as raised:
        AFleet(4).deal(data, **asked)
    assert "\n" not in str(raised.value)


def test_a_batch_size_is_needed_unless_a_loader_has_one():
    with pytest.raises(InputError, match="a data set and no batch_size; add batch_size=…"):
        AFleet(4).deal(range(4), None)
    own: DataLoader[int] = DataLoader(range(4), batch_sampler=BatchSampler(SequentialSampler(range(4)), 3, True))  # type: ignore[arg-type]
    assert AFleet(3).deal(own, None)[0][0].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("data", "asked", "length"),
    [
        (range(50), {}, 7),
        (range(50), {"epochs": 3}, 19),
        (range(50), {"drop_last": True}, 6),
        (range(50), {"samples": 20}, 3),
        (range(50), {"updates": 5}, 5),
        (range(50), {"updates": 5, "epochs": 1}, 5),
        (range(50), {"updates": 50, "epochs": 1}, 7),
        (range(50), {"sampler": WeightedRandomSampler([1.0] * 50, 80)}, 10),
        (lambda: torch.zeros(4), {"updates": 9}, 9),
        (lambda: torch.zeros(4), {"samples": 16}, 2),
        (Stream(50), {"samples": 16}, 2),
        (DataLoader(range(50), 8), {"batch_size": None}, 4),  # type: ignore[arg-type]
    ],
)
def test_a_length_is_that_of_equally_fast_workers(data, asked, length):
    batches = AFleet(4, 4).batches(data, **asked)[0]
    assert len(batches) == length
    assert batches.is_estimate
    assert f"about {length} batches" in repr(batches)


def test_a_length_is_known_alone_and_unknown_of_streams():
    (batches,) = AFleet(4).batches(range(50))
    assert len(batches) == 13 == len(list(batches))
    assert not batches.is_estimate
    for data in (Stream(50), lambda: torch.zeros(4)):
        (batches,) = AFleet(4).batches(data)
        with pytest.raises(TypeError, match=r"of unknown length has no len\(\); say updates=… or samples=…"):
            len(batches)
        assert "an unknown number of batches" in repr(batches)


@pytest.mark.parametrize(
    ("data", "sampling"),
    [(range(50), "queue"), (range(50), "iid"), (range(50), "shards"), (Stream(50), "queue")],
    ids=["queue", "iid", "shards", "stream"],
)
def test_samples_end_a_loop_exactly_and_epochs_do_not(data, sampling):
    fleet = AFleet(4, 7, 3)
    assert len(flat(fleet.deal(data, samples=120, sampling=sampling))) == 120
    assert fleet.ranks[0].begun[0].places == 120
    assert len(flat(AFleet(4, 7).deal(data, samples=120, epochs=1, sampling=sampling))) == 50


@pytest.mark.parametrize(
    ("data", "asked", "plan"),
    [
        (range(50), {"epochs": 2}, LoopPlan(4, 100, 100, 50, 2, None)),
        (range(50), {"updates": 9}, LoopPlan(4, inf, inf, 50, None, 9)),
        (range(50), {"samples": 70}, LoopPlan(4, 70, 70, 50, None, None)),
        (range(50), {"sampler": [1, 2], "epochs": 3}, LoopPlan(4, inf, 6, 2, 3, None)),
        (Stream(50), {}, LoopPlan(4, inf, inf, inf, 1, None)),
        (lambda: torch.zeros(4), {"updates": 9}, LoopPlan(4, inf, inf, inf, None, 9)),
    ],
)
def test_a_fleet_is_told_how_long_a_loop_will_be(data, asked, plan):
    fleet = AFleet(4)
    next(iter(fleet.batches(data, **asked)[0]))
    assert fleet.ranks[0].begun == [plan]


def test_shares_are_disjoint_and_the_same_in_every_epoch():
    fleet = AFleet(4, 4, 4)
    batches = fleet.batches(range(50), sampling="shards", epochs=2)
    got, again = in_turn(batches), in_turn(batches)
    shares = [Counter(flat([mine])) for mine in got]
    assert all(set(share.values()) == {2} for share in shares)
    assert sorted(place for share in shares for place in share) == list(range(50))
    assert shares == [Counter(flat([mine])) for mine in again]
    assert flat(got) != flat(again)
    in_order = AFleet(4, 4).deal(range(10), sampling="shards", shuffle=False)
    assert [flat([mine]) for mine in in_order] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


@pytest.mark.parametrize("stopped_at", [0, 1, 3])
@pytest.mark.parametrize(
    ("data", "asked"),
    [
        (range(50), {}),
        (range(50), {"sampling": "shards"}),
        (range(50), {"sampler": [*range(50)]}),
        (Stream(50, shuffle=True), {}),
    ],
    ids=["data set", "shards", "sampler", "stream"],
)
def test_a_loop_that_goes_on_later_deals_out_what_is_left(data, asked, stopped_at):
    fleet = AFleet(4, 7)
    used = in_turn(fleet.batches(data, epochs=2, **asked), most=stopped_at)
    applied = [sum(map(len, mine)) for mine in used]
    later = AFleet(3, 5)
    batches = later.batches(data, epochs=2, **asked)
    left = left_over(100, sorted(fleet.claims), applied)
    for rank in later.ranks:
        rank.left = left
    rest = in_turn(batches)
    assert Counter(flat(used)) + Counter(flat(rest)) == dict.fromkeys(range(50), 2)


def test_a_loop_that_was_left_says_so_and_another_may_follow():
    fleet = AFleet(4)
    (batches,) = fleet.batches(range(50))
    assert fleet.ranks[0].begun == []
    iterator = iter(batches)
    assert fleet.ranks[0].begun == []  # not before the first `next`
    for number, _ in enumerate(itertools.islice(iterator, 3)):
        assert fleet.ranks[0].sizes == [4] * (number + 1)
    iterator.close()  # type: ignore[attr-defined]
    assert sorted(flat([list(batches)])) == list(range(50))
    assert fleet.ranks[0].ended == [True, False]
    for batch, number in zip(batches, itertools.count(), strict=False):
        assert len(batch) == (4 if number < 12 else 2)


def test_an_iterator_is_read_once():
    (batches,) = AFleet(4).batches(numbers(10))
    assert flat([list(batches)]) == list(range(10))
    with pytest.raises(InputError, match="which is read by now"):
        list(batches)


def test_an_iterator_cannot_be_read_again_when_a_rank_dies():
    feed = StreamFeed(read_data(numbers(10), Asked(4)), Member(0, 2, 0))
    feed.order(3)
    with pytest.raises(InputError, match=r"can be read once; give what it is made from, .* goes on when ranks die"):
        feed.order(3)


def test_an_error_of_a_stream_comes_out_when_its_place_is_taken():
    def broken():
        raise KeyError("the user's own")
        yield

    fleet = AFleet(4)
    (batches,) = fleet.batches(broken())
    assert batches.fingerprint()["digest of some samples"] == "unreadable"
    with pytest.raises(KeyError, match="the user's own"):
        list(batches)


def test_tensors_come_as_a_plain_loader_gives_them():
    x, y = torch.randn(10, 3), torch.arange(10)
    loader = DataLoader(TensorDataset(x, y), 4)
    for mine, theirs in zip(AFleet(4).deal(loader, None)[0], loader, strict=True):
        assert torch.equal(mine[0], theirs[0])
        assert torch.equal(mine[1], theirs[1])


@pytest.mark.parametrize("asked", [{}, {"sampling": "shards"}, {"sampler": [*range(36, -1, -1)]}])
def test_what_is_left_is_dealt_out_anew_when_a_rank_is_gone(asked):
    """The second rank takes some batches and is gone; what it had taken is not learnt from."""
    fleet = AFleet(3, 5)
    first, second = (iter(batches) for batches in fleet.batches(range(37), **asked))
    got = [next(first), next(second), next(first), next(second)]
    learnt = fleet.lose(1)
    rest = list(first)
    assert sorted(flat([learnt_by_first(got, learnt), rest])) == list(range(37))
    assert fleet.ranks[0].ended == [False]


def learnt_by_first(got: list[Any], learnt: int) -> list[Any]:
    return [got[0], got[2]][:learnt]
