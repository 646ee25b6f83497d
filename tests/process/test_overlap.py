"""Sending layers while the user's backward pass goes on: the same result, or a clear refusal."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from tests.process.started import PATIENCE_S, importable, torchrun
from torch import nn
from torch.nn import functional

import ownpace

pytestmark = pytest.mark.timeout(2 * PATIENCE_S)
INPUTS = torch.randn(400, 16, generator=torch.Generator().manual_seed(0))
DATA = torch.utils.data.TensorDataset(INPUTS, torch.arange(400) % 4)


def train(
    *, overlap: bool | None, twice: bool = False, clip: bool = False, leave: str = "", late: int | None = None
) -> torch.Tensor:
    """A net of several buckets, one layer of which takes no part."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(16, 1600), nn.Tanh(), nn.Linear(1600, 1600), nn.Tanh(), nn.Linear(1600, 4))
    model.register_parameter("idle", nn.Parameter(torch.ones(1000)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with ownpace.join("sync") as fleet:
        model, optimizer = fleet.wrap(model, optimizer, overlap=overlap)
        for number, (x, y) in enumerate(fleet.batches(DATA, 24, epochs=2, sampling="shards")):
            leaves = leave and number == 3 and fleet.rank == 1
            if leaves and leave == "before":
                break
            functional.cross_entropy(model(x), y).backward()
            if leaves:
                break
            if twice:
                functional.cross_entropy(model(x), y).backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            if late is not None and number >= 8:
                # As scripts that clip by hand do, once the norm is large: torch counts no change.
                for parameter in list(model.parameters())[late:]:
                    if parameter.grad is not None:
                        parameter.grad.data.mul_(0.5)
            optimizer.step()
            optimizer.zero_grad()
    return torch.cat([parameter.detach().view(-1) for parameter in model.parameters()])


def refusal(*, twice: bool = False, clip: bool = False, late: int | None = None) -> str:
    try:
        train(overlap=True if late is None else None, twice=twice, clip=clip, late=late)
    except ownpace.InputError as error:
        return str(error)
    return ""


def main() -> None:
    plain, overlapped = train(overlap=False), train(overlap=True)
    found = {
        "off": float((plain - overlapped).abs().max()),
        "clip": refusal(clip=True),
        "twice": refusal(twice=True),
        "late": refusal(late=0),
        "late, one layer": refusal(late=-1),
        "left before": train(overlap=True, leave="before").double().square().sum().item(),
        "left after": train(overlap=True, leave="after").double().square().sum().item(),
    }
    Path(sys.argv[1], os.environ["RANK"]).write_text(json.dumps(found))


def test_overlap_changes_nothing_but_the_time(start, tmp_path):
    run = start(torchrun("-m", "tests.process.test_overlap", str(tmp_path)), PYTHONPATH=importable())
    assert run.ends() == 0, run.stderr
    ranks = [json.loads((tmp_path / rank).read_text()) for rank in ("0", "1")]
    assert ranks[0]["left before"] == ranks[1]["left before"]  # with a batch that was never stepped with
    assert ranks[0]["left after"] == ranks[1]["left after"]
    assert ranks[0]["left after"] != ranks[0]["left before"]  # it was on its way already
    for found in ranks:
        assert found["off"] < 1e-6
        assert "gradients were changed between backward and optimizer.step" in found["clip"]
        for late in ("late", "late, one layer"):
            assert "gradients were changed between backward and optimizer.step" in found[late]
        assert "backward was called twice" in found["twice"]


if __name__ == "__main__":
    main()
