from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tests.process.small_net import Numbers, make_net, mean_loss, sgd
from torch.utils.data import DataLoader, IterableDataset

import ownpace
from ownpace.drop_in import Joined
from ownpace.integrations.closures import accept_closures
from ownpace.integrations.training_data import TrainingData

SIZE = 61


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(SIZE))


def nowhere() -> Joined:
    raise AssertionError("no loop begins")


def data_of(loader: object, num_workers: int = 2, **options: object) -> TrainingData:
    return TrainingData(loader, num_workers, nowhere, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "length"),
    [
        ({}, 4),  # of 16 samples of two workers each, the last one of 13
        ({"accumulated": 2}, 2),
        ({"limit": 3}, 3),
        ({"limit": 100}, 4),
        ({"limit": 0.5}, 2),
        ({"limit": 2, "accumulated": 2}, 1),
    ],
)
def test_its_length_is_in_updates_of_equally_fast_workers(options, length):
    assert len(data_of(DataLoader(Numbers(SIZE), 8), **options)) == length


def test_data_of_unknown_length_have_the_length_that_a_framework_needs():
    loader = DataLoader(Stream(), 8)
    with pytest.raises(TypeError, match="unknown length"):
        len(data_of(loader))
    assert len(data_of(loader, unknown_length=7)) == 7
    assert len(data_of(loader, limit=3)) == 3


@pytest.mark.parametrize(
    ("loader", "what"), [(Numbers(3), "are a Numbers"), (DataLoader(Numbers(3), None), "no batch_size")]
)
def test_what_is_no_loader_of_batches_is_refused(loader, what):
    with pytest.raises(ownpace.InputError, match=what):
        data_of(loader)


def test_each_iteration_is_a_loop_and_one_that_is_left_ends():
    net = make_net()
    taken: list[int] = []
    with ownpace.join("sync", quiet=True) as fleet:
        net, optimizer = fleet.wrap(net, sgd(net))
        data = TrainingData(DataLoader(Numbers(SIZE), 8), 1, lambda: fleet, accumulated=2, updates=lambda: None)
        assert not data.end()  # none was begun
        for leaves in (False, True, False):
            iter(data)  # as frameworks do, more than once before they take a batch
            for x, y, indices in data:
                assert data.is_running
                taken += indices.tolist()
                optimizer.zero_grad()
                mean_loss(net, x, y).backward()
                optimizer.step()
                if leaves and data.batches == 3:
                    break
            assert data.end()
            assert not data.is_running
            assert not data.end()
    # In the order of the loader; two batches make an update, of 61 samples and of the first 24.
    assert taken == [*range(SIZE), *range(24), *range(SIZE)]
    assert fleet.updates == 4 + 2 + 4


def test_a_closure_brings_its_gradient():
    net = make_net()
    with ownpace.join("sync", quiet=True) as fleet:
        net, optimizer = fleet.wrap(net, sgd(net))
        accept_closures(optimizer)
        skipped = 0

        for x, y, indices in fleet.batches(Numbers(SIZE), 8, shuffle=False):

            def closure(x=x, y=y, indices=indices) -> torch.Tensor | None:
                optimizer.zero_grad()
                if 0 in indices:
                    return None
                loss = mean_loss(net, x, y)
                loss.backward()
                return loss

            with torch.no_grad():
                loss = optimizer.step(closure)  # type: ignore[arg-type]  # None skips a batch
            skipped += loss is None
    assert skipped == 1
    assert fleet.updates == 7
    optimizer.step()  # an ordinary one again
