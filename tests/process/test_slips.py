"""What scripts do wrong, or not quite right: it is counted right, or said."""

from __future__ import annotations

import pytest
from tests.process.small_net import Numbers, make_net, mean_loss, sgd

import ownpace


@pytest.mark.parametrize("zeroing", ["before", "after, in place"])
def test_a_batch_that_is_skipped_while_old_gradients_are_there_is_not_counted(zeroing):
    """Zeroing at the top of the loop is as usual as at its end; then the last step's gradients are still there."""
    net = make_net()
    optimizer = sgd(net)
    with ownpace.join("sync", quiet=True) as fleet:
        fleet.wrap(net, optimizer)
        for number, (x, y, _) in enumerate(fleet.batches(Numbers(40), 8)):
            if number == 2:
                continue
            if zeroing == "before":
                optimizer.zero_grad()
            mean_loss(net, x, y).backward()
            optimizer.step()
            if zeroing != "before":
                optimizer.zero_grad(set_to_none=False)
            if number == 3:
                with pytest.raises(ownpace.InputError, match="twice for one batch"):
                    optimizer.step()
        assert fleet.samples == 32
    assert fleet.summary.update_samples.max == 8


def test_accumulated_batches_without_a_step_are_told_of():
    net = make_net()
    optimizer = sgd(net)
    with ownpace.join("sync", quiet=True) as fleet:
        fleet.wrap(net, optimizer)

        def loop() -> None:
            for number, (x, y, _) in enumerate(fleet.batches(Numbers(40), 8)):
                mean_loss(net, x, y).backward()
                if number % 2:
                    optimizer.step()
                    optimizer.zero_grad()

        with pytest.warns(UserWarning, match="ended with 8 samples that were accumulated, but never stepped with"):
            loop()
        assert fleet.samples == 32


def test_next_after_the_end_is_explained():
    def script() -> None:
        net = make_net()
        optimizer = sgd(net)
        with ownpace.join("sync", quiet=True) as fleet:
            fleet.wrap(net, optimizer)
            batches = iter(fleet.batches(Numbers(16), 8))
            while True:
                x, y, _ = next(batches)
                mean_loss(net, x, y).backward()
                optimizer.step()
                optimizer.zero_grad()

    with pytest.raises(ownpace.InputError, match=r"next\(\) was called on a loop"):
        script()


def test_a_model_that_servers_hold_cannot_be_changed_between_loops():
    net = make_net()
    optimizer = sgd(net)
    with ownpace.join("async", quiet=True) as fleet:
        fleet.wrap(net, optimizer)
        for change in (False, True):
            if change:
                next(net.parameters()).data.zero_()
            batches = iter(fleet.batches(Numbers(16), 8))
            if change:
                with pytest.raises(ownpace.InputError, match="parameter servers hold it and would not know"):
                    next(batches)
                break
            for x, y, _ in batches:
                mean_loss(net, x, y).backward()
                optimizer.step()
                optimizer.zero_grad()


def test_a_checkpoint_of_other_data_is_refused(tmp_path):
    for size in (40, 24):
        net = make_net()
        optimizer = sgd(net)
        with ownpace.join("sync", quiet=True) as fleet:
            fleet.wrap(net, optimizer)
            if size == 24:
                fleet.load(tmp_path / "run.pt")
                with pytest.raises(ownpace.InputError, match="number of samples was 40, here it is 24"):
                    next(iter(fleet.batches(Numbers(size), 8)))
                break
            for x, y, _ in fleet.batches(Numbers(size), 8):
                mean_loss(net, x, y).backward()
                optimizer.step()
                optimizer.zero_grad()
                fleet.save(tmp_path / "run.pt")
