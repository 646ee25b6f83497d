"""Lightning's Trainer, with a fleet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.integrations.ranks import (
    check_alike,
    check_all_leave_with_rank_0,
    check_every_sample_once,
    check_rest_of_epoch,
    needs,
    one_of,
    rests,
    run,
    updates_of_sync,
    without_ownpace,
)
from tests.process.small_net import close, on_one_machine, sgd
from tests.process.started import Start

pytestmark = [pytest.mark.slow, needs("lightning")]
SIZE, BATCH = 61, 8
MORE = ("resumed", "within", "scaled", "two by hand", "stream")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_fits_on_ranks(ranks: int, start: Start, tmp_path: Path) -> None:
    seen = run("lightning_runs", ranks, start, tmp_path)
    whole = -(-SIZE // (BATCH * ranks))
    check_like_a_plain_loop(seen)
    for name in ("sync", "clipped", "accumulated", "by hand", "pace", "bfloat16", "async", "local", *MORE):
        check_every_sample_once(seen, name, SIZE)
    for name in seen[0].keys() - {"refusals"}:
        check_alike(seen, name, "metrics", "checkpoint", *([] if name == "async" else ["steps"]))
        assert sum(rank[name]["validated"] for rank in seen) >= SIZE, name
        assert seen[0][name]["at_most_one_storage"] == 1, name
    first = seen[0]
    assert first["sync"]["steps"] == first["sync"]["updates"] == 2 * whole
    assert first["max_steps"]["steps"] == 3
    assert first["resumed"]["steps"] == 3 * whole
    assert len(first["resumed"]["epochs"]) == 1
    for name, mean in (("sync", 30), ("pace", 30), ("few", 5.5)):
        # Over the samples of all ranks, however many each of them had.
        assert first[name]["metrics"]["mean"] == pytest.approx(mean)
        assert first[name]["metrics"]["plain"] == pytest.approx(mean)
    assert list((tmp_path / "within").glob("step=2.ckpt"))
    assert len(first["early"]["epochs"]) == 1
    check_all_leave_with_rank_0(seen)
    limited = [index for rank in seen for batches in rank["limited"]["epochs"] for batch in batches for index in batch]
    assert len(limited) == len(set(limited)) == min(SIZE, 2 * BATCH * ranks)
    check_schedule(first["pace"])
    check_refusals(first["refusals"])
    check_goes_on_within_an_epoch(seen, tmp_path)
    check_checkpoint(first["pace"], start)
    if ranks == 2:
        check_plain_trainer_goes_on(first["sync"], start)


def check_like_a_plain_loop(seen: list[Any]) -> None:
    for name, clip_sum in (
        ("sync", None),
        ("clipped", 0.5),
        ("by hand", None),
        ("two by hand", None),
        ("stream", None),
    ):
        expected = on_one_machine(SIZE, updates_of_sync(seen, name), sgd, clip_sum=clip_sum)
        close(torch.tensor(seen[0][name]["weights"]), expected)
    # With the optimizer's state of the checkpoint.
    both = updates_of_sync(seen, "sync") + updates_of_sync(seen, "resumed")
    close(torch.tensor(seen[0]["resumed"]["weights"]), on_one_machine(SIZE, both, sgd))
    expected = on_one_machine(SIZE, updates_of_sync(seen, "accumulated", each=2), sgd)
    close(torch.tensor(seen[0]["accumulated"]["weights"]), expected)


def check_goes_on_within_an_epoch(seen: list[Any], folder: Path) -> None:
    for name in rests(len(seen)):
        path = one_of(folder / name.split()[0], "often-step=*.ckpt", last="end" in name)
        state = torch.load(path, weights_only=True)["ownpace"]
        check_rest_of_epoch(seen, name, SIZE, state)


def check_schedule(pace: dict[str, Any]) -> None:
    """It went up, and down to its end, whatever number of batches this rank had."""
    assert pace["rates"][0] < 0.01 < max(pace["rates"])
    assert pace["rates"][-1] < 1e-4


def check_refusals(said: dict[str, str]) -> None:
    assert "end of an epoch" in said["val_check_interval"]
    assert "waits for all ranks" in said["sync_batchnorm"]
    assert '"norm"' in said["clip by value"]
    assert "torchrun --nproc-per-node 7" in said["devices"]


def check_checkpoint(pace: dict[str, Any], start: Start) -> None:
    """Lightning's own file has the model that training ended with, also for one who has no ownpace."""
    script = f"""
import torch, lightning
state = torch.load({pace["checkpoint"]!r}, weights_only=True)
print(state["global_step"], *torch.cat([value.reshape(-1) for value in state["state_dict"].values()]).tolist())
momenta = [value["momentum_buffer"] for value in state["optimizer_states"][0]["state"].values()]
print(*(momentum.untyped_storage().nbytes() for momentum in momenta))
"""
    values, sizes = without_ownpace(start, script).splitlines()
    step, *weights = map(float, values.split())
    assert step == pace["steps"]
    assert weights == pytest.approx(pace["weights"], abs=0)
    assert max(map(int, sizes.split())) < 4 * len(weights)


def check_plain_trainer_goes_on(sync: dict[str, Any], start: Start) -> None:
    script = f"""
import torch, lightning
from torch.utils.data import DataLoader, TensorDataset

class Plain(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        layers = torch.nn.Linear(6, 8), torch.nn.Identity(), torch.nn.Tanh(), torch.nn.Linear(8, 3)
        self.net = torch.nn.Sequential(*layers)
    def training_step(self, batch, number):
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

trainer = lightning.Trainer(max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False)
data = TensorDataset(torch.randn(40, 6), torch.randint(3, (40,)))
trainer.fit(Plain(), DataLoader(data, 8), ckpt_path={sync["checkpoint"]!r})
print("steps", trainer.global_step)
"""
    assert f"steps {sync['steps'] + 5}" in without_ownpace(start, script)
