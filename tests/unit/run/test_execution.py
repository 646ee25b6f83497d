"""`execute` and `train`."""

from __future__ import annotations

import inspect
import stat
from dataclasses import fields

import pytest

import ownpace
from ownpace import Config, InputError, execute
from ownpace.algorithms.sync import SyncSgd
from ownpace.engines import Job
from ownpace.run.config import help_of
from ownpace.tasks import Quadratic

SHORT = Config(task="quadratic", samples=200)


def test_train_takes_every_field_by_name_with_its_type_and_default():
    signature = inspect.signature(ownpace.train)
    config = inspect.signature(Config)
    assert list(signature.parameters) == [*config.parameters, "out", "overwrite", "resume"]
    assert {p.kind for p in signature.parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
    for name, parameter in config.parameters.items():
        assert signature.parameters[name].default == parameter.default
    assert signature.parameters["micro_batch"].annotation == int | None


def test_train_documents_every_field():
    text = inspect.getdoc(ownpace.train)
    assert text is not None
    for field in fields(Config):
        assert f"{field.name}: {help_of(field.name).text}" in text


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("sync", "train was given 'sync' without a name; write algorithm='sync'"),
        ("digits", "write task='digits'"),
        (SyncSgd(), r"write algorithm=SyncSgd\(via='ring'\)"),
        (Quadratic(), r"write task=Quadratic\("),
        ("runs/first", "write out='runs/first'"),
        (Config(), r"ownpace.execute\(config\)"),
        ([4, 2], r"write algorithm=\[4, 2\]"),
    ],
)
def test_arguments_without_a_name_are_refused(given, message):
    with pytest.raises(InputError, match=message):
        ownpace.train(given)  # type: ignore[call-arg]  # type checkers refuse it, too


def test_unknown_arguments_are_named():
    with pytest.raises(InputError, match="unknown argument 'algoritm'; did you mean 'algorithm'"):
        ownpace.train(algoritm="sync")  # type: ignore[call-arg]  # type checkers refuse it, too


def test_one_job_is_made_for_a_run_and_handed_to_who_watches(monkeypatch, tmp_path):
    made: list[Job] = []
    make = Config.job

    def counted(self: Config, out=None) -> Job:
        made.append(make(self, out))
        return made[-1]

    monkeypatch.setattr(Config, "job", counted)
    seen: list[Job] = []
    execute(SHORT, tmp_path / "r", on_start=seen.append)
    assert len(made) == 1
    assert seen == made
    execute(SHORT, job=made[0])
    assert len(made) == 1


def test_the_code_of_an_early_end_is_in_the_summary(tmp_path):
    result = execute(Config(task="quadratic", lr=1e9), tmp_path / "r")
    assert result.error is not None
    assert result.summary.code == "diverged"
    assert execute(SHORT).summary.code is None


def test_all_files_of_a_run_can_be_read_by_the_same_people(tmp_path):
    execute(SHORT, tmp_path)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert set(modes) == {"config.json", "events.jsonl", "model.safetensors", "summary.json"}
    assert len(set(modes.values())) == 1, modes
