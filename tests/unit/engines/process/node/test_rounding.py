"""Whether rounding may be why replicas differ."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from ownpace.core.learning.layout import Layout
from ownpace.engines.process.node.rounding import BEYOND, allowed, distance, rounding_digest

LAYOUT = Layout.of(
    [("weight", torch.Size([4]), False), ("none", torch.Size([0]), False), ("bias", torch.Size([2]), False)]
)
VALUES = torch.tensor([1.0, -2.0, 0.5, 0.0, 1e-3, -1e-3])


@pytest.mark.parametrize(
    ("place", "by", "expected", "layer"),
    [
        (0, 0.0, 0.0, 0),
        (1, 2e-6, 1e-6, 0),
        (3, 2e-6, 1e-6, 0),
        (5, 2e-6, 1e-5, 2),  # of a layer that is about 0: next to a tenth of the model's largest number
        (4, float("nan"), BEYOND, 2),
        (0, float("inf"), BEYOND, 0),
    ],
)
def test_the_distance_is_that_of_the_layer_that_is_furthest(place: int, by: float, expected: float, layer: int) -> None:
    mine = VALUES.clone()
    mine[place] += by
    apart, where = distance(mine, VALUES, LAYOUT)
    assert apart == pytest.approx(expected, rel=0.1)
    assert where == layer


def test_a_model_of_nothing_is_equal_to_itself() -> None:
    assert distance(torch.zeros(0), torch.zeros(0), Layout.of([("none", torch.Size([0]), False)])) == (0.0, 0)
    assert distance(torch.zeros(6), torch.zeros(6), LAYOUT)[0] == 0.0


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_steps_that_are_rounded_twice_stay_within_what_is_allowed(kind: type[torch.optim.Optimizer]) -> None:
    """In double precision and back is another rounding than in single precision throughout."""
    torch.manual_seed(0)
    begun = torch.randn(6)
    options: dict[str, float] = {"lr": 0.1, "momentum": 0.9} if kind is torch.optim.SGD else {"lr": 0.01}
    pairs = []
    for dtype in (torch.float32, torch.float64):
        parameter = torch.nn.Parameter(begun.to(dtype))
        pairs.append((parameter, kind([parameter], **options)))  # type: ignore[arg-type]  # each has these
    for _ in range(200):
        gradient = torch.randn(6) * 0.1
        for parameter, optimizer in pairs:
            parameter.grad = gradient.to(parameter.dtype)
            optimizer.step()
        with torch.no_grad():
            pairs[1][0].copy_(pairs[1][0].float())
    apart, _ = distance(pairs[1][0].detach().float(), pairs[0][0].detach(), LAYOUT)
    assert 0 < apart < allowed(200, torch.float32) < 1e-4


def test_what_is_allowed_has_an_end() -> None:
    assert allowed(1, torch.float32) < 2e-6
    assert allowed(10**6, torch.bfloat16) == 1 / 8


@pytest.mark.slow
@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="none rounds otherwise than this one")
def test_processors_that_round_unlike_have_other_digests() -> None:
    here = rounding_digest(torch.device("cpu"))
    assert here == rounding_digest(torch.device("cpu"))
    code = "import torch; from ownpace.engines.process.node.rounding import rounding_digest as d; "
    code += "print(d(torch.device('cpu')))"
    there = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "ATEN_CPU_CAPABILITY": "default"},
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    ).stdout.strip()
    assert len(there) == len(here)
    assert there != here
