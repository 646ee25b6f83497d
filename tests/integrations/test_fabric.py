"""Fabric and Accelerate, with a fleet."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.integrations.ranks import check_alike, check_every_sample_once, needs, run, updates_of_sync, without_ownpace
from tests.process.small_net import close, on_one_machine, sgd
from tests.process.started import Start

pytestmark = [pytest.mark.slow, needs("lightning", "accelerate")]
SIZE = 61


@pytest.mark.timeout(600)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_loops_on_ranks(ranks: int, start: Start, tmp_path: Path) -> None:
    seen = run("fabric_runs", ranks, start, tmp_path)
    for name, clip_sum in (("sync", None), ("clipped", 0.5), ("accelerated", None)):
        expected = on_one_machine(SIZE, updates_of_sync(seen, name), sgd, clip_sum=clip_sum)
        close(torch.tensor(seen[0][name]["weights"]), expected)
    for name in ("sync", "clipped", "pace", "accelerated", "accelerated pace"):
        check_every_sample_once(seen, name, SIZE)
        check_alike(seen, name)
    for name in ("sync", "clipped", "pace"):
        check_alike(seen, name, "updates", "loss")
        assert sum(rank[name]["validated"] for rank in seen) >= 2 * SIZE
    assert [rank["accelerated"]["is_main"] for rank in seen] == [True] + [False] * (ranks - 1)
    assert "model.eval()" in seen[0]["refusals"]["eval"]
    if ranks > 1:
        assert "different batches" in seen[0]["refusals"]["not to gather"]
    script = f"""
import torch
state = torch.load("{tmp_path}/sync.ckpt", weights_only=True)
print(*torch.cat([value.reshape(-1) for value in state["model"].values()]).tolist())
"""
    assert [float(value) for value in without_ownpace(start, script).split()] == seen[0]["sync"]["weights"]
