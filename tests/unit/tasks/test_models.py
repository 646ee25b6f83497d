"""Models of images."""

from __future__ import annotations

import pytest
import torch

from ownpace.tasks.models import IMAGE_MODELS


@pytest.mark.parametrize("name", IMAGE_MODELS)
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32)])
def test_models_take_their_shapes(name, shape):
    outputs = IMAGE_MODELS[name](shape, 10)(torch.zeros(2, *shape))
    assert outputs.shape == (2, 10)


def test_known_sizes():
    def size(name, shape):
        return sum(p.numel() for p in IMAGE_MODELS[name](shape, 10).parameters())

    assert size("mlp", (1, 28, 28)) == 101_770
    assert size("resnet18", (3, 32, 32)) == 11_173_962
    assert 0.26e6 < size("resnet20", (3, 32, 32)) < 0.28e6
