"""A loop that is broken off after a checkpoint, and gone on with: `torchrun … -m tests.process.scenarios_checkpoint …`.

The model has a number for each sample, and its gradient is of that sample alone: what is not zero was learnt from.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from tests.process.small_net import RANK
from torch import Tensor, nn

import ownpace

SIZE, BATCH = 120, 4
ALGORITHMS: dict[str, dict[str, Any]] = {
    "sync": {},
    "balanced": {},
    "pace": {},
    "local": {"steps": 2},
    "wp": {"steps": 3},
    "stride": {},
}


class Marks(nn.Module):
    """A number for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.marks = nn.Parameter(torch.zeros(SIZE))

    def forward(self, indices: Tensor) -> Tensor:
        return self.marks[indices].mean()


def learn(algorithm: str, file: Path, *, resume: bool) -> dict[str, Any]:
    model = Marks()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    seen: list[int] = []
    with ownpace.join(algorithm, parameters=ALGORITHMS[algorithm], quiet=True) as fleet:
        fleet.wrap(model, optimizer)
        if resume:
            fleet.load(file)
        for number, indices in enumerate(fleet.batches(torch.arange(SIZE), BATCH)):
            seen += indices.tolist()
            time.sleep(0.004 * RANK)  # ranks of different speed
            model(indices).backward()
            optimizer.step()
            optimizer.zero_grad()
            if not resume and RANK == 0 and number == 7:
                fleet.save(file)
            if not resume and number == 10 + RANK:
                break
        return {"seen": seen, "marks": model.marks.tolist(), "samples": fleet.samples, "epoch": fleet.epoch}


def main() -> None:
    scenario, folder = sys.argv[1:]
    torch.set_num_threads(1)
    files = {name: Path(folder).parent / f"{name}.pt" for name in ALGORITHMS}
    found = {name: learn(name, file, resume=scenario == "go_on") for name, file in files.items()}
    (Path(folder) / f"{RANK}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
