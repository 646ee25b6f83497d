"""`--config`: a run again, from its file, with further options."""

from __future__ import annotations

import json
import sys

import pytest

from ownpace.cli.main import main

FIRST = (
    "train --algorithm stale -p staleness=2 --task quadratic -t noise=0.5 --fleet mild --samples 400 --seed 3 --json"
)


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def test_a_run_is_run_again_byte_for_byte(ownpace, tmp_path):
    assert ownpace(f"{FIRST} --out first")[0] == 0
    assert ownpace("train --config first/config.json --out second --json")[0] == 0
    first, second = tmp_path / "first", tmp_path / "second"
    assert (first / "events.jsonl").read_bytes() == (second / "events.jsonl").read_bytes()
    assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()
    assert ownpace("train --config first --out third --json")[0] == 0
    assert config_of(tmp_path / "third") == config_of(second)


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ("--lr 0.1", {"lr": 0.1}),
        ("--epochs 1", {"samples": 1000}),
        ("-p staleness=0", {"parameters": {"staleness": 0, "by_layer": False}}),
        ("--algorithm sync", {"algorithm": "sync", "parameters": {"via": "ring"}}),
        ("--seed 4 --no-detail", {"seed": 4, "detail": False}),
        ("--timing-only", {"timing_only": True}),
    ],
)
def test_further_options_override_the_file(ownpace, tmp_path, options, changed):
    assert ownpace(f"{FIRST} --out first")[0] == 0
    assert ownpace(f"train --config first {options} --out second --json")[0] == 0
    expected = {**config_of(tmp_path / "first"), **changed}
    assert config_of(tmp_path / "second") == expected


def test_a_flag_of_the_file_can_be_switched_off(ownpace, tmp_path):
    assert ownpace(f"{FIRST} --timing-only --no-detail --out first")[0] == 0
    assert ownpace("train --config first --no-timing-only --detail --out second --json")[0] == 0
    assert (config_of(tmp_path / "second")["timing_only"], config_of(tmp_path / "second")["detail"]) == (False, True)
    assert (tmp_path / "second" / "model.safetensors").exists()


def test_a_run_can_be_compared_with_other_algorithms(ownpace, tmp_path):
    # With a target: without one, a comparison takes the task's own.
    assert ownpace(f"{FIRST} --target-loss 0.5 --out first")[0] == 0
    code, out, _ = ownpace("compare --config first --algorithms stale,sync --out both --json")
    assert code == 0
    runs = json.loads(out.splitlines()[-1])["runs"]
    assert [(run["algorithm"], run["seed"], run["samples"] >= 400) for run in runs] == [
        ("stale", 3, True),
        ("sync", 3, True),
    ]
    first, again = tmp_path / "first", tmp_path / "both" / "stale-virtual"
    assert (first / "events.jsonl").read_bytes() == (again / "events.jsonl").read_bytes()


def test_an_algorithm_of_ones_own_module(ownpace, tmp_path, monkeypatch):
    source = """
from dataclasses import dataclass
from ownpace import Algorithm, accumulate

@dataclass(frozen=True, kw_only=True)
class Patient(Algorithm):
    batches: int = 1
    async def worker(self, me):
        while me.training:
            me.step(await me.all_reduce(await accumulate(me, self.batches * me.batch_size)))
"""
    (tmp_path / "lately_written.py").write_text(source, encoding="utf-8")
    monkeypatch.setattr(sys, "path", list(sys.path))
    own = "--task quadratic --samples 500 --json"
    assert ownpace(f"train --algorithm lately_written:Patient -p batches=2 {own} --out first")[0] == 0
    assert config_of(tmp_path / "first")["parameters"] == {"batches": 2}
    assert ownpace("train --config first --out second --json")[0] == 0
    first, second = tmp_path / "first", tmp_path / "second"
    assert (first / "events.jsonl").read_bytes() == (second / "events.jsonl").read_bytes()
    algorithms = "--algorithms sync,lately_written:Patient -p lately_written:Patient.batches=3"
    assert ownpace(f"compare {algorithms} {own} --out both")[0] == 0
    assert config_of(tmp_path / "both" / "Patient")["parameters"] == {"batches": 3}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("train --config gone.json", "there is no file gone.json; give the config.json of a run"),
        ("train --config summary.json", "does not describe a run"),
        ("train --config lambda.json", "the optimizer was <function <lambda>>, which cannot be made again"),
        ("train --algorithm nowhere:Patient", "algorithm 'nowhere:Patient' cannot be imported"),
        ("compare --algorithms nowhere:Patient", "algorithm 'nowhere:Patient' cannot be imported"),
        ("compare --engine real", "unknown engine 'real'"),
    ],
)
def test_what_cannot_be_run_is_one_line(ownpace, tmp_path, arguments, words):
    (tmp_path / "summary.json").write_text('{"algorithm": "sync"}', encoding="utf-8")
    lost = {"format": 1, "optimizer": {"object": "<function <lambda>>", "cannot_be_saved_because": "it has no name"}}
    (tmp_path / "lambda.json").write_text(json.dumps(lost), encoding="utf-8")
    code, out, err = ownpace(arguments)
    assert (code, out) == (2, "")
    assert err.startswith("ownpace: ")
    assert err.count("\n") == 1
    assert words in err


MISTAKEN = """
import torch
from ownpace import Algorithm, Task

class Raises(Algorithm):
    async def worker(self, me):
        raise KeyError("sam")

class Shapes(Task):
    def model(self):
        return torch.nn.Linear(3, 2)
    def train_samples(self):
        return torch.randn(64, 2), torch.arange(64) % 2
    test_samples = train_samples
"""


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (
            "--algorithm mistaken.py:Raises",
            "KeyError: 'sam' (mistaken.py, line 7): raised in a run of your own code",
        ),
        ("--task mistaken.py:Shapes", "RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
    ],
)
def test_a_mistake_in_ones_own_code_is_one_line_and_all_of_it_if_asked(ownpace, tmp_path, own, words):
    (tmp_path / "mistaken.py").write_text(MISTAKEN, encoding="utf-8")
    code, _, err = ownpace(f"train {own} --samples 64 --fleet 1,1 --out r")
    lines = [line for line in err.splitlines() if "%" not in line]
    assert code == 2
    assert len(lines) == 1
    assert words in lines[0]
    with pytest.raises((KeyError, RuntimeError)):
        main(f"train {own} --samples 64 --fleet 1,1 --out again --verbose".split())


def test_a_limit_of_events_is_not_negative(ownpace):
    code, _, err = ownpace("train --events-limit -1 --samples 64 --timing-only")
    assert (code, err.count("\n")) == (2, 1)
    assert "events_limit_mb is -1" in err
