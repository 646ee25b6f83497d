"""Two ranks of torchrun's that run a scenario, and what they wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.process.started import Start, Started, importable, torchrun


def launch(
    scenario: str, start: Start, folder: Path, module: str = "tests.process.scenarios"
) -> tuple[Started, int, list[Any]]:
    """Run one of the functions of a module on two ranks; returns what each of them wrote, if it came to that."""
    started = start(torchrun("-m", module, scenario, str(folder)), PYTHONPATH=importable())
    code = started.ends()
    written = [folder / f"{rank}.json" for rank in range(2)]
    return started, code, [json.loads(path.read_text()) for path in written if path.exists()]


def run(scenario: str, start: Start, folder: Path, module: str = "tests.process.scenarios") -> list[Any]:
    """Run one that ends well; returns what each rank saw."""
    started, code, ranks = launch(scenario, start, folder, module)
    assert code == 0, started.stderr
    assert len(ranks) == 2
    return ranks
