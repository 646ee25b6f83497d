"""The description of a run as a file: the second run of it is the first, and what cannot be read says so."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import textwrap
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ownpace import Task, TensorSamples
from ownpace.algorithms.stale import StaleSgd
from ownpace.core.contract.errors import InputError
from ownpace.engines import Job
from ownpace.fleet import paces
from ownpace.run import Config, execute
from ownpace.tasks import Digits, Quadratic

FLEET = """
[[machine]]
samples_per_s = 3000
count = 2
jitter = 0.1

[[machine]]
name = "old"
samples_per_s = 600
[[machine.slowdown]]
from_s = 0.1
until_s = 0.3
factor = 2

[network]
latency_s = 0.001

[[server]]
"""
MODULE = """
from dataclasses import dataclass

import torch
from torch import nn

from ownpace import Algorithm, Task, TensorSamples, accumulate


@dataclass(frozen=True, kw_only=True)
class Patient(Algorithm):
    batches: int = 1

    async def worker(self, me):
        while me.training:
            me.step(await me.all_reduce(await accumulate(me, self.batches * me.batch_size)))


class Halves(Task):
    def model(self):
        return nn.Linear(2, 2)

    def train_samples(self):
        x = torch.linspace(-1, 1, 64)[:, None].expand(64, 2)
        return TensorSamples(x, (x[:, 0] > 0).long())

    test_samples = train_samples


def slow(parameters):
    return torch.optim.SGD(parameters, lr=0.01)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "things_of_mine.py").write_text(textwrap.dedent(MODULE), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return importlib.import_module("things_of_mine")


def assert_runs_again(config: Config, folder: Path) -> None:
    """The file of a run describes it wholly: what is read from it makes the same events, and the same file again."""
    execute(config, folder / "first")
    again = Config.load(folder / "first" / "config.json")
    execute(again, folder / "second")
    assert (folder / "first" / "events.jsonl").read_bytes() == (folder / "second" / "events.jsonl").read_bytes()
    assert Config.load(folder / "second") == again


@pytest.mark.parametrize(
    "given",
    [
        {"fleet": "steep", "epochs": 1},
        {"fleet": "drift", "algorithm": "async", "samples": 500, "seed": 3},
        {"algorithm": "stale", "parameters": {"staleness": "1"}, "fleet": "straggler", "seconds": 0.2},
        {"task": "quadratic", "task_parameters": {"curvature": "1.5", "num_samples": 300}, "momentum": 0.9},
        {
            "task": "digits",
            "model": "logistic",
            "sampling": "shards",
            "schedule": "cosine",
            "micro_batch": 8,
            "epochs": 1,
        },
        {"fleet": paces(900, 300, jitter=0.2), "task": Quadratic(noise=2.0), "algorithm": StaleSgd(staleness=2)},
        {"task": Digits(model_name="logistic"), "epochs": 1, "fleet": "2,1", "optimizer": "adam", "lr": 0.01},
    ],
    ids=["preset", "drift", "parameters", "task", "model", "objects", "object with a model"],
)
def test_a_run_is_run_again_from_its_file(given, tmp_path):
    assert_runs_again(Config(**given), tmp_path)


def test_a_fleet_of_a_file_is_kept_whole(tmp_path):
    (tmp_path / "fleet.toml").write_text(FLEET, encoding="utf-8")
    config = Config(fleet=str(tmp_path / "fleet.toml"), algorithm="async", task="quadratic", epochs=1)
    execute(config, tmp_path / "r")
    (tmp_path / "fleet.toml").unlink()
    execute(Config.load(tmp_path / "r"), tmp_path / "again")
    assert (tmp_path / "r" / "events.jsonl").read_bytes() == (tmp_path / "again" / "events.jsonl").read_bytes()


def test_things_of_the_users_own_modules_are_named(own, tmp_path):
    config = Config(algorithm=own.Patient(batches=2), task=own.Halves(), optimizer=own.slow, epochs=1, batch_size=4)
    assert_runs_again(config, tmp_path)
    content = json.loads((tmp_path / "first" / "config.json").read_text())
    assert (content["algorithm"], content["parameters"]) == ("things_of_mine:Patient", {"batches": 2})
    assert (content["task"], content["task_parameters"], content["model"]) == ("things_of_mine:Halves", {}, None)
    assert content["optimizer"] == "things_of_mine:slow"


@dataclass(frozen=True)
class Holding(StaleSgd):
    """Its field is nothing that a file can hold."""

    start: torch.Tensor = field(default_factory=lambda: torch.zeros(1))


class Plain(Task):
    """A task whose arguments are not known."""

    def __init__(self, rows: int) -> None:
        self._samples = TensorSamples(torch.zeros(rows, 2), torch.zeros(rows, dtype=torch.int64))

    def model(self) -> nn.Module:
        return nn.Linear(2, 2)

    def train_samples(self) -> TensorSamples:
        return self._samples

    test_samples = train_samples


def local() -> StaleSgd:
    @dataclass(frozen=True)
    class Inner(StaleSgd):
        pass

    return Inner()


@pytest.mark.parametrize(
    ("name", "thing", "why"),
    [
        ("algorithm", local(), "Inner is defined inside a function"),
        ("algorithm", Holding(), "its fields do not survive a file: Object of type Tensor"),
        ("task", Plain(3), "Plain is not a dataclass, so its arguments are not known"),
        ("optimizer", lambda parameters: torch.optim.SGD(parameters, lr=0.1), "is defined inside a function"),
        ("optimizer", partial(torch.optim.SGD, lr=0.1), "neither a class nor a function"),
    ],
    ids=["local class", "tensor", "no dataclass", "lambda", "partial"],
)
def test_what_cannot_be_made_again_says_why(tmp_path, name, thing, why):
    execute(Config(**{name: thing, "batch_size": 1, "samples": 2}), tmp_path / "r")
    with pytest.raises(InputError, match=f"the {name} was .* cannot be made again: .*{why}.*; give another {name}"):
        Config.load(tmp_path / "r")


def test_a_class_of_the_script_is_not_in_a_module(tmp_path, monkeypatch):
    monkeypatch.setattr(Holding, "__module__", "__main__")
    Config(algorithm=Holding()).save(tmp_path / "c.json")
    with pytest.raises(InputError, match="defined in the script that was run; put it into a file of its own"):
        Config.load(tmp_path / "c.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("lr: 0.1", "is not JSON"),
        ("[1]", 'does not describe a run: it has no "format"'),
        ('{"algorithm": "sync", "reason": "finished"}', 'it has no "format"'),
        ('{"format": 2, "ownpace": "9.0.0"}', "has format 2, .* reads format 1; it was written by ownpace 9.0.0"),
        ('{"format": 1, "learning_rate": 0.1}', "unknown key in .*c.json: 'learning_rate'.* [Kk]nown: algorithm"),
        ('{"format": 1, "lr": "0.1"}', "c.json: lr is '0.1'; it must be a number"),
        ('{"format": 1, "sampling": "que"}', "c.json: unknown sampling 'que'; did you mean 'queue'"),
        ('{"format": 1, "algorithm": 3}', "c.json: algorithm is 3; it must be a string or an Algorithm"),
        ('{"format": 1, "fleet": {"machines": []}}', "c.json: fleet: unknown key .*'machines'; did you mean 'machine'"),
        ('{"format": 1, "fleet": 4}', r"c.json: fleet is 4"),
    ],
)
def test_files_that_are_no_description_are_refused(tmp_path, content, message):
    path = tmp_path / "c.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        Config.load(path)


def test_files_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"there is no file .*gone.json; give the config.json of a run"):
        Config.load(tmp_path / "gone.json")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="is not JSON"):
        Config.load(tmp_path / "bytes")


def test_what_json_cannot_hold_is_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be saved: Object of type Tensor"):
        Config(parameters={"staleness": torch.ones(1)}).save(tmp_path / "c.json")
    assert not (tmp_path / "c.json").exists()


def test_fields_left_out_keep_their_defaults(tmp_path):
    (tmp_path / "c.json").write_text('{"format": 1, "lr": 1}', encoding="utf-8")
    assert Config.load(tmp_path / "c.json") == Config(lr=1)


def test_another_version_is_worth_a_warning(tmp_path, caplog):
    (tmp_path / "c.json").write_text('{"format": 1, "ownpace": "0.0.1"}', encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        assert Config.load(tmp_path / "c.json") == Config()
    assert "was written by ownpace 0.0.1" in caplog.text


@pytest.mark.parametrize(
    "content", [b"null", b"5", b"\xff\xfe", b"[" * 100_000, b'{"format": ' + b"9" * 5000 + b"}", b'{"format": NaN}']
)
def test_whatever_is_no_description_is_one_short_line(tmp_path, content):
    (tmp_path / "c.json").write_bytes(content)
    with pytest.raises(InputError) as caught:
        Config.load(tmp_path / "c.json")
    assert len(str(caught.value)) < 600
    assert "\n" not in str(caught.value)


@settings(max_examples=100)
@given(st.data())
def test_damaged_files_are_a_description_or_bad_input(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("config") / "c.json"
    whole = Config(task="quadratic", samples=200, fleet="2,1")
    whole.resolved(whole.job()).save(path)
    text = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(text)))
        text[place : place + data.draw(st.integers(0, 10))] = data.draw(
            st.binary(max_size=4)
            | st.sampled_from([b"null", b"-1", b'"', b"{", b"}", b"[", b"]", b"1e999", b"NaN", b"9"])
        )
    path.write_bytes(bytes(text))
    with contextlib.suppress(InputError):
        assert isinstance(Config.load(path).job(), Job)
