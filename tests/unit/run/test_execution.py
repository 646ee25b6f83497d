"""`execute` and `train`."""

from __future__ import annotations

import inspect
import stat
from dataclasses import fields

import ownpace
from ownpace import Config, execute
from ownpace.engines import Job
from ownpace.run.config import help_of

SHORT = Config(task="quadratic", samples=200)


def test_train_documents_every_field():
    text = inspect.getdoc(ownpace.train)
    assert text is not None
    for field in fields(Config):
        assert f"{field.name}: {help_of(field.name).text}" in text


def test_one_job_is_made_for_a_run_and_handed_to_who_watches(monkeypatch, tmp_path):
    made: list[Job] = []
    make = Config.job

    def counted(self: Config, out=None, **how) -> Job:
        made.append(make(self, out, **how))
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
