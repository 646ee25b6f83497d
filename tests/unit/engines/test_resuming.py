"""A checkpoint of another model or of other data is refused, whatever its names say."""

from __future__ import annotations

from functools import cached_property

import pytest
from torch import nn

from ownpace import InputError, make_algorithm
from ownpace.core.learning.plain_state import PlainState
from ownpace.core.learning.task import TensorSamples
from ownpace.testing import simulate
from ownpace.testing.blobs import Blobs


class Wider(Blobs):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(2, 9), nn.Tanh(), nn.Linear(9, 2))


class Turned(Blobs):
    """As many parameters, in other shapes."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 2), nn.Tanh(), nn.Linear(2, 8))


class Deeper(Blobs):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2), nn.Linear(2, 2))


class Fewer(Blobs):
    @cached_property
    def _samples(self) -> TensorSamples:
        everything = Blobs().train_samples()
        assert isinstance(everything, TensorSamples)
        return TensorSamples(everything.inputs[:300], everything.targets[:300])


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        (
            Wider(),
            r"another model: it has 0\.weight of shape \[8, 2\] where this one has 0\.weight of shape \[9, 2\]",
        ),
        (Turned(), r"it has 0\.weight of shape \[8, 2\] where this one has 0\.weight of shape \[2, 8\]"),
        (Deeper(), r"it has no more layers where this one has 3\.weight of shape \[2, 2\]"),
        (Fewer(), "was made with 400 training samples, but there are 300"),
    ],
)
def test_another_model_or_other_data_are_refused(task, reason):
    states: list[PlainState] = []
    simulate(make_algorithm("sync"), task=Blobs(), samples=400, checkpoint_every=200, on_checkpoint=states.append)
    assert simulate(make_algorithm("sync"), task=Blobs(), samples=500, resume_from=states[0])[0].error is None
    with pytest.raises(InputError, match=reason):
        simulate(make_algorithm("sync"), task=task, samples=500, resume_from=states[0])
