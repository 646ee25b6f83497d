"""Several workers' gradients as replayed graphs: parameters and buffers are each worker's own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ownpace.core.learning.cuda_graphs import CapturedGradients
from ownpace.core.learning.flat import Buffers, FlatModel
from ownpace.engines.learning import RealLearning
from ownpace.testing.blobs import Blobs


class Normed(Blobs):
    """With BatchNorm, whose statistics are each worker's own."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))


class Replays(CapturedGradients):
    """Stands in for graphs where there is no GPU: what a replay computes is a function of the places that it reads."""

    def __init__(self, model: FlatModel, buffers: Buffers) -> None:
        self.values = torch.empty_like(model.initial)
        self._source = None
        self._model, self._own, self._known, self.num_replayed = model, buffers, set[int](), 0

    def knows(self, samples: int) -> bool:
        return samples in self._known

    def record(self, inputs: Tensor, targets: Tensor) -> None:
        assert self._model.take_buffers()[0] is self._own[0], "recorded with somebody else's buffers"
        self._known.add(len(targets))
        self.gradient(inputs, targets)  # as recording does: statistics change

    def gradient(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        self.num_replayed += 1
        self._model.bind(self.values, self._own)
        return self._model.gradient(inputs, targets)


def gradients(learning: RealLearning) -> list[Tensor]:
    """Of two workers in turns, with sizes that come back and one that does not, and evaluations between them."""
    workers = [learning.new_buffers(), learning.new_buffers()]
    points = [learning.initial, learning.initial + 0.1]
    found = []
    for turn, size in enumerate((8, 8, 8, 5, 8, 16, 8, 16, 16)):
        who = turn % 2
        parts, loss = learning.gradient(points[who], workers[who], torch.arange(10 * turn, 10 * turn + size))
        score = learning.score(points[who], workers)
        found += [torch.cat([part.reshape(-1) for part in parts]), torch.tensor([loss, score.loss])]
    return found + [buffer for buffers in workers for buffer in buffers]


def test_replays_are_what_each_worker_would_compute_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    expected = gradients(RealLearning(Normed(), torch.device("cpu")))
    stand_ins = []

    def capture(model: FlatModel, buffers: Buffers) -> Replays:
        stand_ins.append(Replays(model, buffers))
        model.bind(stand_ins[0].values, buffers)
        return stand_ins[0]

    monkeypatch.setattr(FlatModel, "capture", capture)
    torch.manual_seed(0)
    replayed = gradients(RealLearning(Normed(), torch.device("cpu"), graphs=True))
    assert stand_ins[0].num_replayed == 2 + 6  # two sizes recorded; of nine gradients, those whose size came before
    for mine, other in zip(replayed, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_graphs_of_a_gpu_do_the_same() -> None:
    torch.manual_seed(0)
    expected = gradients(RealLearning(Normed(), torch.device("cuda")))
    torch.manual_seed(0)
    replayed = gradients(RealLearning(Normed(), torch.device("cuda"), graphs=True))
    for mine, other in zip(replayed, expected, strict=True):
        torch.testing.assert_close(mine, other)
