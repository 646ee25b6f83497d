"""Batches that are parts of what a worker contributes to an update."""

from __future__ import annotations

import pytest
from tests.process.small_net import Numbers, close, flat, make_net, mean_loss, on_one_machine, sgd

import ownpace

SIZE = 61


@pytest.mark.parametrize("algorithm", ["sync", "local", "async"])
def test_micro_batches_add_up_to_a_batch(algorithm):
    net, batches = make_net(), []
    with ownpace.join(algorithm, parameters={"steps": 1} if algorithm == "local" else None, quiet=True) as fleet:
        net, optimizer = fleet.wrap(net, sgd(net))
        for x, y, indices in fleet.batches(Numbers(SIZE), batch_size=16, micro_batch=4):
            batches.append(indices.tolist())
            optimizer.zero_grad()
            mean_loss(net, x, y).backward()
            optimizer.step()
    assert sorted(index for batch in batches for index in batch) == list(range(SIZE))
    assert max(map(len, batches)) == 4
    assert fleet.updates == 4
    close(flat(net), on_one_machine(SIZE, [batches[at : at + 4] for at in range(0, len(batches), 4)], sgd))


def test_a_micro_batch_is_at_most_a_batch():
    net = make_net()
    with ownpace.join("sync", quiet=True) as fleet:
        net, optimizer = fleet.wrap(net, sgd(net))
        sizes = []
        for x, y, _ in fleet.batches(Numbers(SIZE), batch_size=8, micro_batch=100):
            sizes.append(len(x))
            mean_loss(net, x, y).backward()
            optimizer.step()
        assert sizes == [8] * 7 + [5]
        with pytest.raises(ownpace.InputError, match="micro_batch is 0"):
            fleet.batches(Numbers(SIZE), batch_size=8, micro_batch=0)
