"""Tasks of users: what the base class must not get in the way of."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from ownpace import Task, TensorSamples, train


@dataclass(frozen=True)
class Wide(Task):
    """A dataclass whose first field has no default, and the name that tasks of ours use for their model."""

    model_name: str
    width: int

    def model(self) -> nn.Module:
        return nn.Linear(self.width, 2)

    def train_samples(self) -> TensorSamples:
        return TensorSamples(torch.eye(self.width), torch.arange(self.width) % 2)

    def test_samples(self) -> TensorSamples:
        return self.train_samples()


class Plain(Wide):
    """One that is no dataclass of its own."""

    def __init__(self) -> None:
        object.__setattr__(self, "width", 8)


def test_fields_of_a_users_task_need_no_defaults():
    assert Wide("linear", 8).width == 8
    assert train(task=Wide("linear", 8), fleet="2,1", batch_size=4, epochs=1).summary.model == "linear"


def test_a_task_needs_no_name_for_its_model():
    assert train(task=Plain(), fleet="2,1", batch_size=4, epochs=1).summary.model == ""
