"""What the process that starts others tells them: through variables, which they inherit."""

from __future__ import annotations

import os
from pathlib import Path

_RUNS, _DEVICE = "HEADLINES_RUNS", "HEADLINES_DEVICE"


def tell(runs: Path, device: str) -> None:
    """For all processes that will be started."""
    os.environ[_RUNS], os.environ[_DEVICE] = str(runs), device


def runs() -> Path:
    """The file in which single runs are kept."""
    return Path(os.environ[_RUNS])


def device() -> str:
    """Where gradients are computed."""
    return os.environ.get(_DEVICE, "cpu")
