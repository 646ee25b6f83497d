"""Data that differs between ranks is found out, and looking at it leaves no trace."""

from __future__ import annotations

import os
import random
from collections import namedtuple

import numpy as np
import pytest
import torch
from PIL import Image
from tests.unit.drop_in.a_fleet import AFleet
from torch.utils.data import Dataset

from ownpace.drop_in.digest import digest, digest_of_samples
from ownpace.drop_in.random_states import Generators, read_states, seeded

Pair = namedtuple("Pair", "x y")
DIFFERENT = [
    torch.zeros(3),
    torch.zeros(3, dtype=torch.float64),
    torch.zeros(3, 1),
    torch.tensor([0.0, 0.0, -0.0]),
    torch.zeros(3, dtype=torch.bfloat16),
    torch.eye(2),
    torch.eye(2).to_sparse(),
    np.zeros(3),
    np.zeros(3, dtype=np.int64),
    np.float32(0.0),
    np.array([None]),
    0,
    0.0,
    False,
    None,
    "0",
    b"0",
    bytearray(b"1"),
    [0],
    [0, 0],
    [[0], 0],
    [[0, 0]],
    (0,),
    {"x": 0},
    {"x": 1},
    {"y": 0},
    Pair(0, 1),
    {0},
    Image.new("RGB", (2, 2)),
    Image.new("RGB", (2, 2), (1, 0, 0)),
    Image.new("L", (2, 2)),
    object(),
]


def test_digests_differ_where_samples_do_and_only_there():
    digests = [digest(value) for value in DIFFERENT]
    assert len(set(digests)) == len(digests)
    assert digests == [digest(value) for value in DIFFERENT]
    assert digest(object()) == digest(object())
    assert digest(torch.arange(6).view(2, 3).T) == digest(torch.arange(6).view(2, 3).T.contiguous())


class Drawing(Dataset[float]):
    """Draws whenever it is read, from the global generators or from one of its own."""

    def __init__(self, own: random.Random | None = None) -> None:
        self.own = own
        self.pids: list[int] = []

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> float:
        self.pids.append(os.getpid())
        if self.own is not None:
            return self.own.random()
        return index + float(torch.rand(())) + np.random.rand() + random.random()


@pytest.mark.parametrize("workers", [0, 1])
def test_reading_samples_leaves_the_generators_as_they_were(workers):
    before = read_states()
    first = digest_of_samples(Drawing(), [0, 4], {"num_workers": workers})
    after = read_states()
    assert torch.equal(before.cpu, after.cpu)
    assert (before.python, before.numpy[1].tolist()) == (after.python, after.numpy[1].tolist())
    torch.rand(1), np.random.rand(), random.random()
    assert digest_of_samples(Drawing(), [0, 4], {"num_workers": workers}) == first
    assert digest_of_samples(Drawing(), [0, 3], {"num_workers": workers}) != first


def test_samples_that_cannot_be_compared_are_left_out():
    assert digest_of_samples(Drawing(random.Random()), [0, 4], {}) == "random random"
    assert digest_of_samples([1], [0, 4], {}).endswith(" unreadable")


def test_where_workers_load_this_process_reads_nothing():
    """A file that was opened here would be shared by all workers that are forked later."""
    data = Drawing()
    digest_of_samples(data, [0, 4], {"num_workers": 2})
    assert data.pids == []
    digest_of_samples(data, [0, 4], {})
    assert data.pids == [os.getpid()] * 4


@pytest.mark.parametrize(
    ("one", "other", "key"),
    [
        ({"data": range(16)}, {"data": range(17)}, "number of samples"),
        ({"data": range(16)}, {"data": range(1, 17)}, "digest of some samples"),
        ({"data": iter(range(16))}, {"data": iter(range(1, 17))}, "digest of some samples"),
        ({"data": range(16)}, {"data": iter(range(16))}, "kind of data"),
        ({"data": range(16)}, {"data": range(16), "batch_size": 8}, "batch size"),
        ({"data": range(16)}, {"data": range(16), "epochs": 2}, "epochs"),
        ({"data": range(16)}, {"data": range(16), "sampling": "iid"}, "sampling"),
        ({"data": range(16)}, {"data": range(16), "shuffle": False}, "order"),
        ({"data": range(16), "sampler": [0, 1]}, {"data": range(16), "sampler": [0, 2]}, "order"),
        ({"data": range(16)}, {"data": range(16), "drop_last": True}, "last batch"),
        ({"data": range(16), "epochs": 1}, {"data": range(16), "epochs": 1, "updates": 3}, "end of the loop"),
        ({"data": range(16)}, {"data": range(16), "collate_fn": torch.tensor}, "collate function"),
    ],
)
def test_fingerprints_tell_what_differs(one, other, key):
    def fingerprint(data, **asked):
        return AFleet(4, 4).batches(data, **asked)[0].fingerprint()

    mine, theirs = fingerprint(**one), fingerprint(**other)
    assert key in {name for name in mine if mine[name] != theirs[name]}
    assert all("\n" not in value for value in (*mine.values(), *theirs.values()))


def test_a_data_set_is_read_once_for_several_loops():
    data = Drawing()
    (batches,) = AFleet(4).batches(data)
    for _ in range(3):
        batches.fingerprint()
    assert len(data.pids) == 6


def test_generators_go_on_where_they_were():
    def draw() -> tuple[float, float, float]:
        return float(torch.rand(())), np.random.rand(), random.random()

    with seeded(5):
        expected = [draw(), draw()]
    mine = Generators(5)
    found = []
    for _ in range(2):
        with mine.in_use():
            found.append(draw())
        draw()
    assert found == expected
