"""How a model is cut into buckets of layers, and how the time of a gradient divides among them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from ownpace.core.contract.errors import InputError
from ownpace.core.contract.values import Shard
from ownpace.core.learning.layer_work import layer_buckets, sum_buckets, work_shares
from ownpace.core.learning.layout import Layout
from ownpace.core.learning.task import Task, TensorSamples


class Small(Task):
    """One sample of any shape, and any model."""

    def __init__(self, model: nn.Module, *shape: int, work: Mapping[str, float] | None = None) -> None:
        self._model = model
        self._shape = shape
        self._work = work

    def model(self) -> nn.Module:
        return self._model

    def train_samples(self) -> TensorSamples:
        return TensorSamples(torch.zeros(2, *self._shape), torch.zeros(2))

    def test_samples(self) -> TensorSamples:
        return self.train_samples()

    def layer_work(self) -> Mapping[str, float] | None:
        return self._work


def ranges(model: nn.Module, *bounds: int) -> list[list[int]]:
    layout = Layout(model)
    cuts = [0, *bounds, layout.size]
    shards = [Shard(i, a, b) for i, (a, b) in enumerate(pairwise(cuts))]
    return [
        [layer for bucket in layer_buckets(layout, shard) for layer in (bucket.start, bucket.stop)] for shard in shards
    ]


def test_buckets_are_whole_modules_inside_shards():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 4), nn.Linear(4, 1))
    assert ranges(model) == [[0, 8, 8, 20, 20, 25]]
    assert ranges(model, 6) == [[0, 6], [6, 8, 8, 20, 20, 25]]  # a shard may end between weight and bias


def test_small_modules_wait_for_the_next():
    model = nn.Sequential(nn.Linear(100, 10), nn.BatchNorm1d(10), nn.Linear(10, 100), nn.BatchNorm1d(100))
    first, norm, second, last = 1010, 20, 1100, 200
    ends = [first, first + norm + second, first + norm + second + last]
    assert ranges(model) == [[0, ends[0], ends[0], ends[1], ends[1], ends[2]]]


def test_a_layer_works_at_every_place_that_uses_it():
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, bias=False), nn.Flatten(), nn.Linear(32, 5, bias=False))
    shares = work_shares(Small(model, 1, 4, 4), Layout(model))
    assert shares == pytest.approx((18 * 16 / (18 * 16 + 160), 160 / (18 * 16 + 160)))


def test_a_task_may_know_better():
    model = nn.Linear(3, 2)
    task = Small(model, 3, work={"weight": 3.0, "bias": 1.0})
    assert work_shares(task, Layout(model)) == (0.75, 0.25)


@pytest.mark.parametrize("work", [{"weight": 1.0}, {"weight": -1.0, "bias": 2.0}, {"weight": 0.0, "bias": 0.0}])
def test_what_does_not_fit_the_model_is_refused(work):
    model = nn.Linear(3, 2)
    with pytest.raises(InputError, match=r"layer_work gives weight: .*; give each of the model's layers a number"):
        work_shares(Small(model, 3, work=work), Layout(model))


def test_without_modules_that_tell_parameters_count():
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(1))

        def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
            return self.a, self.b

    model = Pair()
    assert work_shares(Small(model, 3), Layout(model)) == (0.75, 0.25)


def test_looking_at_a_model_leaves_no_trace():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    before, mode = torch.get_rng_state(), model.training
    buffers = [buffer.clone() for buffer in model.buffers()]
    work_shares(Small(model, 3), Layout(model))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(map(torch.equal, model.buffers(), buffers))
    assert not any(module._forward_hooks for module in model.modules())
    assert mode


def test_a_model_that_is_called_otherwise_counts_by_its_parameters():
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(3, 1, bias=False), nn.Linear(9, 1, bias=False)

        def forward(self, inputs: Tensor, more: Tensor) -> Tensor:
            return torch.add(self.one(inputs), self.other(more))

    model = Pair()
    assert work_shares(Small(model, 3), Layout(model)) == (0.25, 0.75)


def test_a_sum_is_cut_into_buckets_of_an_eighth_but_one_mebibyte_to_four():
    def sizes(*widths: int) -> list[float]:
        model = nn.Sequential(*(nn.Linear(width, 512, bias=False) for width in widths))
        buckets = sum_buckets(Layout(model), 4)
        covered = [index for bucket in reversed(buckets) for index in bucket.layers]
        assert covered == list(range(len(widths)))
        return [(bucket.stop - bucket.start) / 2**18 for bucket in buckets]

    assert sizes(128, 128, 128) == [0.75]
    assert sizes(512, 256, 256) == [1, 1]
    assert sizes(*[512] * 16) == [2] * 8
    assert sizes(*[512] * 40) == [4] * 10
    assert sizes(512, 4096) == [8, 1]
