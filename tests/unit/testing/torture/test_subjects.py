"""Every algorithm can be drawn, with every one of its parameters."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from ownpace.algorithms import ALGORITHMS
from ownpace.testing.torture.draws import Draws
from ownpace.testing.torture.subjects import draw_subject

LEFT_ALONE = {
    "sizes": "it names the workers, whose number changes",
    "groups": "of Grouping-SGD: the same",
    "local_weight_decay": "the weights that count must not decay",
    "compensation": "of OD-SGD: its local step alone depends on it",
    "decay": "the same",
    "l2": "weights of averages are checked whatever they are",
    "noise": "the same",
    "distance": "the same",
    "weights": "of SimuParallel SGD: it has one",
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_parameter_is_drawn(name):
    settings: Any = ALGORITHMS[name]
    drawn = [vars(draw_subject(Draws(seed), 4, name).algorithm) for seed in range(60)]
    for field in dataclasses.fields(settings):
        values = {values[field.name] for values in drawn}
        assert len(values) > 1 or field.name in LEFT_ALONE, field.name
