"""Things of the user's own: found in a file, and made."""

from __future__ import annotations

import logging
import sys

import pytest

from ownpace.core.contract.errors import InputError
from ownpace.run import Config, execute
from ownpace.run.names import algorithm_of, task_of

SOURCE = """
from dataclasses import dataclass

import ownpace
from ownpace.testing.blobs import Blobs


class Plain(Blobs):
    def __init__(self, size, scale=1.0, name="x", more: int | None = None):
        super().__init__()
        object.__setattr__(self, "given", (size, scale, name, more))


class Half(ownpace.Task):
    def model(self):
        return None


def blobs(bad: bool = False):
    if bad:
        raise ValueError("this is bad")
    return Blobs()


def nothing():
    return 3


ready = Blobs()


@dataclass(frozen=True, kw_only=True)
class Patient(ownpace.Algorithm):
    batches: int = 4

    def __post_init__(self):
        if self.batches > 9:
            raise RuntimeError("too many")

    async def worker(self, me):
        while me.training:
            me.step(await me.all_reduce(await ownpace.accumulate(me, self.batches)))
"""


@pytest.fixture
def my(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.py").write_text(SOURCE, encoding="utf-8")
    return tmp_path / "my.py"


def test_arguments_are_what_they_are_annotated_as_or_look_like(my):
    task = task_of("my.py:Plain", None, {"size": "3", "scale": "2", "name": "5", "more": "none"})
    assert vars(task)["given"] == (3, 2.0, "5", None)
    assert type(task_of("my.py:blobs", None, {"bad": "no"})).__name__ == "Blobs"
    assert task_of("my.py:ready", None, {}) is task_of(f"{my}:ready", None, {})


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("my.py:Plain", {}, r"my.py:Plain needs size; give size=… as a parameter"),
        ("my.py:Plain", {"size": 1, "scal": 2}, "unknown parameter of my.py:Plain: 'scal'; did you mean 'scale'"),
        ("my.py:Plain", {"size": 1, "more": "x"}, "more of my.py:Plain is 'x'; it must be a whole number"),
        ("my.py:blobs", {"bad": "true"}, r"could not be made: ValueError: this is bad \(my.py, line 21\)"),
        ("my.py:nothing", {}, "task 'my.py:nothing' made 3; it must make a Task"),
        ("my.py:Half", {}, "is a class that lacks test_samples, train_samples"),
        ("my.py:ready", {"size": 1}, "is made already"),
        ("my.py:Patient", {}, "it must be a class derived from Task, or a function that makes one"),
        ("my.py:Plane", {}, "unknown task in my.py: 'Plane'; did you mean 'Plain'"),
        ("my.py", {}, r"is a file; say which class in it: my.py:Plain \(it has Plain, Half\)"),
        ("my.py:", {}, "is a file; say which class in it"),
        ("your.py:Plain", {}, "there is no file"),
    ],
)
def test_what_cannot_be_made_is_one_line_that_says_why(my, name, parameters, message):
    with pytest.raises(InputError, match=message) as caught:
        task_of(name, None, parameters)
    assert "\n" not in str(caught.value)


def test_what_a_dataclass_of_ones_own_raises_is_a_line(my):
    with pytest.raises(InputError, match=r"RuntimeError: too many \(my.py, line 38\)"):
        algorithm_of("my.py:Patient", {"batches": "10"})
    with pytest.raises(InputError, match="has only one; leave it out"):
        task_of("my.py:blobs", "wide", {})


def test_a_run_of_own_code_can_be_run_again_and_says_that_the_code_was_changed(my, tmp_path, monkeypatch, caplog):
    given = {"task": "my.py:blobs", "task_parameters": {"bad": "false"}, "algorithm": "my.py:Patient"}
    config = Config(**given, parameters={"batches": 2}, fleet="2,1", batch_size=8, samples=64)  # type: ignore[arg-type]
    execute(config, tmp_path / "run")
    monkeypatch.chdir("/")
    again = Config.load(tmp_path / "run")
    assert (again.task, again.task_parameters, again.parameters) == (f"{my}:blobs", {"bad": "false"}, {"batches": 2})
    assert execute(again).summary.samples == 64
    assert not caplog.records
    my.write_text(SOURCE.replace("4", "5"), encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        changed = Config.load(tmp_path / "run", task="quadratic", task_parameters={})
    # Only what is still taken from there.
    assert [record.getMessage() for record in caplog.records] == [
        f"the code of algorithm {my}:Patient was changed since {tmp_path / 'run' / 'config.json'} was written"
    ]
    # The same thing by another name keeps its parameters.
    monkeypatch.chdir(tmp_path)
    assert changed.override(algorithm="my.py:Patient").parameters == {"batches": 2}
