"""What every node of a run must know, and what of it is compared."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from ownpace.algorithms import make_algorithm
from ownpace.core.learning.layout import Layout
from ownpace.core.learning.optimizer import OptimizerSpec
from ownpace.engines.process.node.terms import RunTerms


def _adam(lr: float) -> OptimizerSpec:
    def build(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=lr)

    return OptimizerSpec(custom=build)


def test_a_function_that_is_elsewhere_in_another_process_is_the_same():
    layers = tuple(Layout(nn.Linear(2, 1)).layers)

    def terms(optimizer: OptimizerSpec) -> dict[str, str]:
        return RunTerms(make_algorithm("sync"), ("a", "b"), 0, layers, torch.float32, optimizer).fingerprint()

    one, other = _adam(0.1), _adam(0.1)
    assert repr(one) != repr(other)
    assert terms(one) == terms(other)
    assert terms(one) != terms(OptimizerSpec(lr=0.2))
