"""The largest stable learning rate of sync, abs, pace and acco, by the matrix of a linear recursion."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.conformance.plain.spy import spied

from ownpace import make_algorithm
from ownpace.core.contract.events import Evaluation
from ownpace.fleet import Network, paces
from ownpace.tasks import Quadratic
from ownpace.testing import simulate


def companion(name: str, h: float, mu: float, alpha: float) -> np.ndarray:
    """One update on a parabola, η·a = h, all workers alike: the matrix that acts on (w_t, w_{t−1}, a, b).

    Here a and b are (in units of 1/curvature) the gradients under way and applied last; for ACCO, a is the estimate.
    """
    if name == "sync":  # w' = w + μ(w − w₋) − h·w
        return np.array([[1 + mu - h, -mu], [1, 0]])
    if name == "abs":  # w' = w + μ(w − w₋) − h·a, and what is computed meanwhile is at w
        return np.array([[1 + mu, -mu, -h], [1, 0, 0], [1, 0, 0]])
    if name == "pace":  # the same, but computed at w + μ(w − w₋) − h(α·a + (1 − α)·b)
        ahead = [1 + mu, -mu, -h * alpha, -h * (1 - alpha)]
        return np.array([[1 + mu, -mu, -h, 0], [1, 0, 0, 0], ahead, [0, 0, 1, 0]])
    assert (name, mu) == ("acco", 0)  # w' = w − h(e + w)/2, e' = w − h·e
    return np.array([[1 - h / 2, -h / 2], [1, -h]])


def radius(name: str, h: float, mu: float, alpha: float) -> float:
    return float(np.abs(np.linalg.eigvals(companion(name, h, mu, alpha))).max())


def final_distance(name: str, num_workers: int, h: float, mu: float, num_updates: int, **parameters: object) -> float:
    """|w| after so many updates from w = 1, where the minimum is at 0 and the curvature is 1: of ten, the largest."""
    algorithm, records = spied(name, **parameters)
    simulate(
        algorithm,
        paces(*[1024] * num_workers, jitter=0.0, network=Network(bandwidth_bytes_per_s=1e12, latency_s=0)),
        task=Quadratic(dimensions=1, noise=0.0, num_samples=10),
        batch_size=1,
        samples=num_updates * num_workers,
        eval_every=10**9,
        detail=False,
        lr=h,
        momentum=mu,
    )
    return max(abs(float(committed.after)) for committed in records[0].steps[-10:])


@pytest.mark.parametrize(
    ("name", "num_workers", "predict", "mu", "limit"),
    [
        ("sync", 2, None, 0.0, 2.0),
        ("sync", 2, None, 0.9, 3.8),
        ("abs", 2, None, 0.0, 1.0),
        ("abs", 2, None, 0.9, 0.10),
        ("pace", 4, "share", 0.0, 0.75),
        ("pace", 4, "share", 0.9, 0.57),
        ("pace", 2, "share", 0.0, 1.0),
        ("pace", 2, "share", 0.9, 0.69),
        ("pace", 4, "own", 0.0, 2.0),
        ("pace", 4, "own", 0.9, 3.8),
        ("acco", 2, None, 0.0, 2.0),
    ],
)
def test_the_largest_stable_learning_rate(name, num_workers, predict, mu, limit):
    """The matrix of the linear recursion says where the limit is, and how fast a run comes or goes on either side.

    The table's figures are cut off after the second place.
    """
    alpha = 1.0 if predict == "own" else 1 / num_workers
    exact = next(h for h in np.arange(0.0005, 4.2, 0.001) if radius(name, h, mu, alpha) > 1)
    assert limit <= exact < limit + 0.011
    parameters = {} if predict is None else {"predict": predict}
    for h, below in ((0.96 * exact, True), (1.04 * exact, False)):
        rate = radius(name, h, mu, alpha)
        assert (rate < 1) == below
        num_updates = math.ceil(math.log(1e3) / abs(math.log(rate)))  # a factor of a thousand, either way
        distance = final_distance(name, num_workers, h, mu, num_updates, **parameters)
        assert distance < 0.05 if below else distance > 20


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(("num_workers", "h", "settles"), [(4, 0.9, True), (4, 1.2, False), (1, 1.2, True)])
def test_where_workers_of_pace_disagree_they_are_stable_up_to_one(
    momentum: float, num_workers: int, h: float, settles: bool
) -> None:
    """What a worker's gradient differs by from the mean is multiplied by −η·a at its next point, whatever μ is."""
    outcome, events = simulate(
        make_algorithm("pace"),
        paces(*[1024] * num_workers, jitter=0.0, network=Network(bandwidth_bytes_per_s=1e12, latency_s=0)),
        task=Quadratic(dimensions=2, noise=1.0),
        batch_size=4,
        samples=4 * 300 * num_workers,
        eval_every=10**9,
        detail=False,
        lr=h,
        momentum=momentum,
    )
    losses = [event.loss for event in events if isinstance(event, Evaluation)]
    assert (outcome.error is None and losses[-1] is not None and losses[-1] < 10) == settles
