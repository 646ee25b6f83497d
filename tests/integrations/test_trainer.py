"""Transformers' Trainer, with a fleet."""

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

from ownpace.integrations.trainer_checkpoint import read_fleet

pytestmark = [pytest.mark.slow, needs("transformers")]
SIZE, BATCH = 61, 8


@pytest.mark.timeout(600)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_trains_on_ranks(ranks: int, start: Start, tmp_path: Path) -> None:
    seen = run("trainer_runs", ranks, start, tmp_path)
    whole = -(-SIZE // (BATCH * ranks))
    check_like_a_plain_loop(seen)
    for name in ("sync", "clipped", "accumulated", "pace", "bfloat16", "async", "local", "by steps", "resumed"):
        check_every_sample_once(seen, name, SIZE)
    for name in seen[0].keys() - {"refusals"}:
        check_alike(seen, name, "best", *([] if name == "async" else ["steps", "epoch"]))
    first = seen[0]
    assert first["sync"]["steps"] == first["sync"]["updates"] == 2 * whole
    assert first["sync"]["epoch"] == 2.0
    assert first["max_steps"]["steps"] == 3
    check_all_leave_with_rank_0(seen)
    assert first["resumed"]["steps"] == 3 * whole
    assert len(first["resumed"]["epochs"]) == 1
    # At the end of an epoch, all ranks go by rank 0's figures; within one, rank 0 evaluates alone.
    assert len(first["sync"]["evaluated"]) == 2
    assert 1 <= len(first["by steps"]["evaluated"]) <= first["by steps"]["steps"] // 2
    assert all(len(rank["by steps"]["evaluated"]) <= len(first["by steps"]["evaluated"]) for rank in seen)
    assert all(rank["pace"]["last_rate"] == 0.0 for rank in seen)  # the schedule ends with the data
    assert "per_device_train_batch_size" in first["refusals"]["auto_find_batch_size"]
    check_goes_on_within_an_epoch(seen, tmp_path)
    check_checkpoint(tmp_path / "sync" / f"checkpoint-{2 * whole}", first["sync"], start)
    if ranks == 2:
        check_plain_trainer_goes_on(tmp_path / "sync" / f"checkpoint-{2 * whole}", first["sync"], start)


def check_like_a_plain_loop(seen: list[Any]) -> None:
    for name, clip_sum in (("sync", None), ("clipped", 0.5), ("scaled", 0.5)):
        expected = on_one_machine(SIZE, updates_of_sync(seen, name), sgd, clip_sum=clip_sum)
        close(torch.tensor(seen[0][name]["weights"]), expected)
    # With the optimizer's state of the checkpoint.
    both = updates_of_sync(seen, "sync") + updates_of_sync(seen, "resumed")
    close(torch.tensor(seen[0]["resumed"]["weights"]), on_one_machine(SIZE, both, sgd))
    expected = on_one_machine(SIZE, updates_of_sync(seen, "two modes, sync"), sgd)
    close(torch.tensor(seen[0]["two modes, sync"]["weights"]), expected + 0.3)  # for use
    expected = on_one_machine(SIZE, updates_of_sync(seen, "accumulated", each=2), sgd)
    close(torch.tensor(seen[0]["accumulated"]["weights"]), expected)


def check_goes_on_within_an_epoch(seen: list[Any], folder: Path) -> None:
    for name in rests(len(seen)):
        saved = read_fleet(one_of(folder / f"{name.split()[0]} whole", "checkpoint-*", last="end" in name))
        assert saved is not None
        check_rest_of_epoch(seen, name, SIZE, saved.state)
        assert {rank[f"{name} rest"]["epoch"] for rank in seen} == {2.0}


def check_checkpoint(folder: Path, sync: dict[str, Any], start: Start) -> None:
    """The Trainer's own folder has the model that training ended with, also for one who has no ownpace."""
    script = f"""
import json, torch
from safetensors.torch import load_file
state = load_file("{folder}/model.safetensors")
order = ["net.0.weight", "net.0.bias", "net.3.weight", "net.3.bias"]
assert sorted(state) == sorted(order)
step = json.load(open("{folder}/trainer_state.json"))["global_step"]
print(step, *torch.cat([state[name].reshape(-1) for name in order]).tolist())
groups = torch.load("{folder}/optimizer.pt", weights_only=True)
print(*(value["momentum_buffer"].untyped_storage().nbytes() for value in groups["state"].values()))
"""
    values, sizes = without_ownpace(start, script).splitlines()
    step, *weights = map(float, values.split())
    assert step == sync["steps"]
    assert weights == sync["weights"]
    assert max(map(int, sizes.split())) < 4 * len(weights)


def check_plain_trainer_goes_on(folder: Path, sync: dict[str, Any], start: Start) -> None:
    script = f"""
import torch
from transformers import Trainer, TrainingArguments

class Plain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        layers = torch.nn.Linear(6, 8), torch.nn.Identity(), torch.nn.Tanh(), torch.nn.Linear(8, 3)
        self.net = torch.nn.Sequential(*layers)
    def forward(self, x, labels):
        return dict(loss=torch.nn.functional.cross_entropy(self.net(x), labels))

data = [dict(x=torch.randn(6), labels=torch.tensor(0)) for _ in range(40)]
args = TrainingArguments("{folder}-on", max_steps={sync["steps"]} + 3, per_device_train_batch_size=8, use_cpu=True,
                         report_to=[], remove_unused_columns=False, save_strategy="no")
model = Plain()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
trainer = Trainer(model, args, train_dataset=data, optimizers=(optimizer, None))
trainer.train(resume_from_checkpoint="{folder}")
print("steps", trainer.state.global_step)
"""
    assert f"steps {sync['steps'] + 3}" in without_ownpace(start, script)
