"""The scripts in examples/, as users start them: plain, and on 1, 2 and 4 processes with several algorithms."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from tests.process.conftest import start as start
from tests.process.started import PATIENCE_S, ROOT, Start, Started, free_port

EXAMPLES = ROOT / "examples"
ALGORITHMS = ("sync", "balanced", "pace", "stride", "async", "local")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * PATIENCE_S)]


def command(script: str, processes: int, *arguments: str) -> list[str]:
    if processes == 1:
        return [sys.executable, str(EXAMPLES / script), *arguments]
    where = ["--nproc-per-node", str(processes), "--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    return [sys.executable, "-m", "torch.distributed.run", *where, str(EXAMPLES / script), *arguments]


def well(started: Started) -> str:
    assert started.ends() == 0, started.stderr
    return started.stdout


def number_after(words: str, text: str) -> float:
    return float(re.findall(rf"{words} ([\d.]+)", text)[-1])


@pytest.mark.parametrize("processes", [1, 2, 4])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_digits(algorithm: str, processes: int, start: Start, tmp_path: Path) -> None:
    arguments = ["--algorithm", algorithm, "--epochs", "2", "--workers", "0", "--save", "model.pt"]
    printed = well(start(command("images.py", processes, *arguments)))
    assert "epoch 2: accuracy" in printed
    assert number_after("learning rate", printed) == pytest.approx(0.016)
    assert all(tensor.isfinite().all() for tensor in torch.load(tmp_path / "model.pt", weights_only=True).values())


@pytest.mark.parametrize("processes", [1, 2, 4])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_char_gpt_goes_on_from_its_checkpoint(algorithm: str, processes: int, start: Start, tmp_path: Path) -> None:
    arguments = ["--algorithm", algorithm, "--every", "4", "--save", "checkpoint.pt", "--resume", "checkpoint.pt"]
    first = well(start(command("char_gpt.py", processes, *arguments, "--updates", "5")))
    second = well(start(command("char_gpt.py", processes, *arguments, "--updates", "10")))
    losses = [number_after("validation loss", printed) for printed in (first, second)]
    assert losses[1] < losses[0] < 4.6, losses  # of 98 characters, by chance: 4.58
    assert 5 <= number_after("goes on after update", second) < 10  # it did not begin anew
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["progress"]["updates"] >= 10


def test_the_scripts_for_one_machine(start: Start) -> None:
    digits = well(start(command("plain/images.py", 1, "--epochs", "2", "--workers", "0")))
    assert number_after("accuracy", digits) > 50
    text = well(start(command("plain/char_gpt.py", 1, "--updates", "8", "--every", "4")))
    assert number_after("validation loss", text) < 4.6


def test_a_compiled_model(start: Start) -> None:
    printed = well(start(command("char_gpt.py", 2, "--algorithm", "sync", "--compile", "--updates", "6")))
    assert number_after("validation loss", printed) < 4.6


@pytest.mark.parametrize("processes", [1, 2])
def test_images_in_folders(processes: int, start: Start, tmp_path: Path) -> None:
    for part, count in (("train", 8), ("val", 2)):
        for name in ("dark", "light"):
            (tmp_path / part / name).mkdir(parents=True)
            for number in range(count):
                colour = (10 * number, 0, 0) if name == "dark" else (255, 255 - 10 * number, 255)
                Image.new("RGB", (20, 16), colour).save(tmp_path / part / name / f"{number}.jpg")
    arguments = [str(tmp_path), "--model", "resnet18", "--size", "16", "--batch-size", "4", "--epochs", "2"]
    printed = well(start(command("folder_images.py", processes, *arguments, "--lr", "0.001", "--workers", "0")))
    assert "epoch 2: accuracy" in printed
