"""Tasks by name."""

from __future__ import annotations

import pytest

from ownpace.core.contract.errors import InputError
from ownpace.tasks import TASKS, make_task


@pytest.mark.parametrize("name", TASKS)
def test_every_task_offers_models(name):
    assert TASKS[name].models


@pytest.mark.parametrize(
    ("name", "model", "parameters", "message"),
    [
        ("digts", None, {}, "unknown task 'digts'; did you mean 'digits'"),
        ("digits", "resnet50", {}, "unknown model for digits 'resnet50'"),
        ("digits", None, {"l2": "1"}, r"unknown key in the parameters of digits \(-t\): 'l2'; known: "),
        ("svmlight", None, {}, "path is missing in the parameters of svmlight"),
        ("quadratic", None, {"dimensions": "many"}, "it must be a whole number"),
        ("digits", None, {"model_name": "mlp"}, "name the model with --model"),
    ],
)
def test_bad_tasks(name, model, parameters, message):
    with pytest.raises(InputError, match=message):
        make_task(name, model, parameters)
