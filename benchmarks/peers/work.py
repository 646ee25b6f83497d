"""What the workers of all systems do: a small perceptron on made-up data, and a record of every batch."""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch

WORKERS, BATCH, BATCH_S = 3, 32, 0.010


def net() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))


def learn(model: torch.nn.Module) -> int:
    """The gradient of one batch, in no less than its time."""
    until = time.monotonic() + BATCH_S
    x = torch.randn(BATCH, 32)
    torch.nn.functional.cross_entropy(model(x), x[:, :10].argmax(1)).backward()
    time.sleep(max(0.0, until - time.monotonic()))
    return BATCH


class Records:
    """A line for every batch: when it was done, whether it is in an update, and how many updates there are."""

    def __init__(self, folder: str, number: str) -> None:
        self._file = (Path(folder) / f"{number}-{time.monotonic():.3f}.jsonl").open("w", encoding="utf-8")

    def write(self, samples: int, *, used: bool | None, update: int) -> None:
        line = {"t": time.monotonic(), "samples": samples, "used": used, "update": update}
        self._file.write(json.dumps(line) + "\n")
        self.flush()

    def flush(self) -> None:
        self._file.flush()
