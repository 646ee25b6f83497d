"""The examples with frameworks, as a user starts them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.integrations.ranks import needs, torchrun
from tests.process.started import ROOT, Start, importable

pytestmark = [pytest.mark.slow, needs("lightning", "transformers")]
SMALL = {
    "lightning_images.py": ["--epochs", "2", "--lr", "0.02"],
    "trainer_bert.py": ["--epochs", "1", "--samples", "240"],
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("algorithm", ["sync", "balanced", "pace", "async", "local"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("example", list(SMALL))
def test_runs_with_each_algorithm(example: str, ranks: int, algorithm: str, start: Start, tmp_path: Path) -> None:
    command = [str(ROOT / "examples" / example), "--algorithm", algorithm, "--out", str(tmp_path), *SMALL[example]]
    started = start([sys.executable, *command] if ranks == 1 else torchrun(ranks, *command), PYTHONPATH=importable())
    assert started.ends() == 0, started.stderr
    assert started.stdout.count("accuracy ") == 1  # rank 0 says it, alone
    assert any(tmp_path.rglob("*.ckpt" if "lightning" in example else "checkpoint-*/model.safetensors"))


@pytest.mark.parametrize("example", list(SMALL))
def test_runs_without_a_fleet(example: str, start: Start, tmp_path: Path) -> None:
    command = [str(ROOT / "examples" / example), "--algorithm", "none", "--out", str(tmp_path), *SMALL[example]]
    started = start([sys.executable, *command], PYTHONPATH=importable())
    assert started.ends() == 0, started.stderr
