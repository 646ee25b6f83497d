"""The length of a vector, element by element."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ownpace.core.learning.norms import length

NUMBERS = st.floats(-1e6, 1e6, width=32)


def by_hand(vector: np.ndarray) -> np.float32:
    """Halves added up one number at a time, each sum rounded to single precision."""
    left = [np.float32(x) * np.float32(x) for x in vector]
    while len(left) > 1:
        half = (len(left) + 1) // 2
        left = [a + b for a, b in zip(left, left[half:], strict=False)] + left[len(left) - half : half]
    return np.float32(math.sqrt(left[0])) if left else np.float32(0)


@given(arrays(np.float32, st.integers(0, 70), elements=NUMBERS))
def test_it_is_the_sum_of_halves_to_the_bit(vector):
    assert float(length(torch.from_numpy(vector.copy()))) == float(by_hand(vector))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 2, 1000, 100_003])
def test_it_is_the_length(dtype, size):
    vector = (300 * torch.randn(size, generator=torch.Generator().manual_seed(0))).to(dtype)
    before = vector.clone()
    assert float(length(vector)) == pytest.approx(float(torch.linalg.vector_norm(vector.double())), rel=1e-6)
    assert torch.equal(vector, before)


def test_what_is_not_finite_stays_so():
    assert torch.isnan(length(torch.tensor([1.0, float("nan"), 2.0])))
    assert torch.isinf(length(torch.tensor([1.0, float("inf"), 2.0])))
