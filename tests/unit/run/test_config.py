"""The description of a run: what it takes, what it refuses, and the job it becomes."""

from __future__ import annotations

import inspect
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import torch

from ownpace.algorithms import ALGORITHMS
from ownpace.algorithms.stale import StaleSgd
from ownpace.algorithms.sync import SyncSgd
from ownpace.core.contract.errors import InputError
from ownpace.core.learning.defaults import Defaults
from ownpace.engines import ENGINES, Job
from ownpace.run import Config
from ownpace.run.config import Engine, help_of, shared_with_job
from ownpace.run.fields import types_of
from ownpace.tasks import Digits, Quadratic
from ownpace.testing.blobs import Blobs


def test_every_field_has_its_help_in_one_sentence():
    for field in fields(Config):
        text = help_of(field.name).text
        assert text[0].isupper()
        assert text.endswith((".", "…")), text
        assert ". " not in text, text


def test_engines_are_those_there_are():
    assert set(get_args(Engine)) == set(ENGINES)


def test_fields_that_the_job_takes_over_have_the_same_type_and_default_there():
    ours, theirs = types_of(Config), get_type_hints(Job)
    defaults = {field.name: field.default for field in fields(Config)}
    for field in fields(Job):
        if field.name in shared_with_job():
            assert ours[field.name] == theirs[field.name], field.name
            assert defaults[field.name] == field.default, field.name
    assert set(shared_with_job()) >= {"batch_size", "seconds", "sampling", "precision", "evaluate", "detail"}


def test_everything_that_decides_a_run_reaches_its_job():
    given: dict[str, Any] = {
        "batch_size": 16,
        "micro_batch": 4,
        "seconds": 3.0,
        "target": 0.5,
        "stop_at_target": True,
        "eval_every": 99,
        "seed": 7,
        "sampling": "iid",
        "detail": False,
        "precision": "bfloat16",
    }
    job = Config(
        algorithm="stale",
        parameters={"staleness": "5"},
        task="quadratic",
        lr=0.5,
        schedule="cosine",
        samples=800,
        **given,
    ).job()
    assert {name: getattr(job, name) for name in given} == given
    assert (job.algorithm, job.samples, job.optimizer.lr, job.optimizer.schedule.shape) == (
        StaleSgd(staleness=5),
        800,
        0.5,
        "cosine",
    )
    assert job.labels == {"algorithm": "stale", "task": "quadratic", "model": "point"}
    assert Config(timing_only=True).job().timing_only


class Known(Blobs):
    defaults = Defaults(lr=0.3, momentum=0.7, schedule="cosine", epochs=3)


def test_a_task_says_how_it_is_learnt_unless_the_description_does():
    def learnt(**given: Any) -> tuple[object, ...]:
        config = Config(task=Known(), **given)
        job = config.job()
        used = config.resolved(job)
        how = (job.optimizer.lr, job.optimizer.momentum, job.optimizer.schedule.shape, job.samples)
        assert (used.lr, used.momentum, used.schedule, used.samples) == how  # what a file records
        return how

    assert learnt() == (0.3, 0.7, "cosine", 1200)
    assert learnt(lr=0.1, momentum=0.0, schedule="linear", epochs=1) == (0.1, 0.0, "linear", 400)
    assert learnt(momentum=0.9)[:2] == (0.1, 0.9)  # steps add up to the same
    assert learnt(momentum=0.0)[:2] == (1.0, 0.0)
    assert learnt(seconds=1.0) == (0.3, 0.7, "constant", None)  # a schedule needs an end
    assert learnt(optimizer="adam") == (0.001, 0.0, "cosine", 1200)
    assert learnt(optimizer=partial(torch.optim.SGD, lr=1.0))[1:3] == (0.0, "constant")
    # Few and large updates take larger steps, unless a rate is named.
    assert learnt(algorithm="acco")[:2] == (1.2, 0.7)
    assert learnt(algorithm="acco", lr=0.1)[0] == 0.1
    assert learnt(algorithm="acco", optimizer="adam")[0] == 0.001


def test_log_files_go_into_the_runs_folder():
    assert Config(log_files=True).job(Path("r")).log_folder == Path("r/logs")
    assert Config().job(Path("r")).log_folder is None
    with pytest.raises(InputError, match="log_files needs a folder"):
        Config(log_files=True).job()


@pytest.mark.parametrize("parameters", [("backup", "backups", 3), ("layered", "groups", 4), ("wp", "per_node", 4)])
def test_parameters_may_ask_for_as_many_workers_as_there_are(parameters):
    algorithm, name, most = parameters
    Config(algorithm=algorithm, parameters={name: most}, fleet="4,2,1,1").job()
    with pytest.raises(InputError, match=f"{name} is {most + 1}, but there are 4 workers"):
        Config(algorithm=algorithm, parameters={name: most + 1}, fleet="4,2,1,1").job()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_trains_one_worker_unless_told_otherwise(algorithm):
    Config(algorithm=algorithm, fleet="1").job()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sampling": "que"}, "unknown sampling 'que'; did you mean 'queue'?"),
        ({"engine": "proces"}, "unknown engine 'proces'; did you mean 'process'?"),
        ({"precision": 16}, "precision is 16; it must be one of float32, bfloat16, float16"),
        ({"lr": "0.1"}, "lr is '0.1'; it must be a number"),
        ({"batch_size": 3.5}, "batch_size is 3.5; it must be a whole number"),
        ({"seed": True}, "seed is True; it must be a whole number"),
        ({"detail": 1}, "detail is 1; it must be true or false"),
        ({"parameters": ["staleness=3"]}, "it must be a mapping of names to values"),
        ({"algorithm": SyncSgd}, r"algorithm is the class SyncSgd; give an instance: algorithm=SyncSgd\(…\)"),
        ({"task": Digits}, r"task is the class Digits; give an instance: task=Digits\(…\)"),
        ({"fleet": 4}, 'fleet is 4; it must be a string or a Fleet or a list or None, as in fleet="4,2,1,1"'),
        ({"optimizer": 3}, "optimizer is 3; it must be a string or a function"),
    ],
)
def test_wrong_types_are_refused_when_it_is_built(given, message):
    with pytest.raises(InputError, match=message):
        Config(**given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"algorithm": StaleSgd(), "parameters": {"staleness": 5}}, r"give them to StaleSgd\(…\)"),
        ({"task": Quadratic(), "model": "point"}, r"model is 'point', but the task is an object"),
        ({"algorithm": "nowhere_to_be_found:Sync"}, "cannot be imported"),
        ({"algorithm": "ownpace.algorithms.sync:Nobody"}, "'Nobody'; known: SyncSgd"),
        ({"algorithm": "ownpace.tasks.convex:Quadratic"}, "must be a class derived from Algorithm"),
        ({"task": "ownpace.core.learning.task:Task"}, "is a class that lacks model, test_samples, train_samples"),
        ({"fleet": []}, "fleet '' is not a list of paces; write numbers and commas, as in 4,2,1,1"),
        ({"fleet": ""}, "fleet '' is not a list of paces"),
        ({"optimizer": "torch:pi"}, "must be a function that makes a torch optimizer"),
    ],
)
def test_what_cannot_be_made_is_refused(given, message):
    with pytest.raises(InputError, match=message):
        Config(**given).job()


def test_names_may_say_where_to_import_from():
    job = Config(
        algorithm="ownpace.algorithms.stale:StaleSgd",
        parameters={"staleness": "2"},
        task="ownpace.tasks.convex:Quadratic",
        task_parameters={"noise": "0"},
        optimizer="torch.optim:SGD",
    ).job()
    assert job.algorithm == StaleSgd(staleness=2)
    assert job.task == Quadratic(noise=0.0)
    assert job.optimizer.custom is torch.optim.SGD
    assert job.labels == {"algorithm": "StaleSgd", "task": "Quadratic", "model": "point"}


def test_a_model_of_an_own_task_is_called_by_its_name():
    assert Config(task=Digits(model_name="lenet")).job().labels == {
        "algorithm": "stride",
        "task": "Digits",
        "model": "lenet",
    }


def test_overriding_drops_what_belonged_to_the_earlier_value():
    config = Config(algorithm="stale", parameters={"staleness": 5}, model="lenet", task_parameters={}, samples=100)
    assert config.override(lr=0.1) == Config(
        algorithm="stale", parameters={"staleness": 5}, model="lenet", samples=100, lr=0.1
    )
    assert config.override(algorithm="sync").parameters == {}
    assert config.override(algorithm="stale").parameters == {"staleness": 5}
    assert config.override(parameters={"staleness": 1}).parameters == {"staleness": 1}
    assert config.override(task="quadratic").model is None
    assert (config.override(epochs=2.0).samples, config.override(epochs=2.0).epochs) == (None, 2.0)
    assert config.override(samples=7).samples == 7


def test_overriding_adds_to_parameters():
    config = Config(algorithm="grouping", parameters={"prerun": 2, "max_groups": 3})
    assert config.override(parameters={"prerun": "5"}).parameters == {"prerun": "5", "max_groups": 3}


def test_all_fields_are_keyword_only():
    assert {p.kind for p in inspect.signature(Config).parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
