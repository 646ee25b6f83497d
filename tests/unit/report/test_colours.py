"""One colour for each algorithm."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from ownpace.algorithms import ALGORITHMS
from ownpace.report.colours import OF_ALGORITHMS, SPARE, colour_of

# What is left of linear RGB for people without one kind of cone (Machado, Oliveira and Fernandes 2009), and OKLab.
ALL_CONES = np.eye(3)
NO_RED = [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
NO_GREEN = [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
CONES = [[0.41222, 0.53633, 0.05145], [0.21190, 0.68070, 0.10740], [0.08830, 0.28172, 0.62998]]
LAB = [[0.21045, 0.79362, -0.00407], [1.97800, -2.42859, 0.45059], [0.02590, 0.78277, -0.80868]]


def linear(colour: str) -> np.ndarray:
    channels = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def test_every_algorithm_has_a_colour_and_none_has_that_of_another():
    assert set(OF_ALGORITHMS) == set(ALGORITHMS)
    assert len({*OF_ALGORITHMS.values(), *SPARE}) == len(OF_ALGORITHMS) + len(SPARE)


@pytest.mark.parametrize("seen", [ALL_CONES, NO_RED, NO_GREEN], ids=["all", "no red", "no green"])
def test_the_first_eight_can_be_told_apart_with_any_eyes(seen):
    points = [
        np.array(LAB) @ np.cbrt(np.array(CONES) @ np.clip(np.array(seen) @ linear(colour), 0, 1))
        for colour in list(OF_ALGORITHMS.values())[:8]
    ]
    assert min(np.linalg.norm(one - other) for one, other in combinations(points, 2)) > 0.1


@pytest.mark.parametrize("colour", [*OF_ALGORITHMS.values(), *SPARE])
def test_all_are_seen_on_white_and_on_black(colour):
    light = linear(colour) @ [0.2126, 0.7152, 0.0722] + 0.05
    assert 1.05 / light > 2.5
    assert light / 0.05 > 2.5


def test_an_own_algorithm_keeps_its_colour():
    assert colour_of("Patient") == "#d160a3"
    assert colour_of("") in SPARE
