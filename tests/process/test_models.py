"""Layers without a gradient, frozen ones, several types, several models: what they learn is what a plain loop makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.process.ranks import run
from tests.process.scenarios_models import OPTIMIZERS, Branches, gan, plain, plain_gan, train
from tests.process.started import PATIENCE_S, Start

pytestmark = pytest.mark.timeout(2 * PATIENCE_S)
ORDERS: dict[str, dict[str, Any]] = {
    "gan": {},
    "gan, generator first": {"generator_first": True},
    "gan, every second": {"every": 2},
}


def close_to_plain(ranks: list[dict[str, Any]], optimizer: str, *, unfreeze: bool = False, atol: float = 1e-6) -> None:
    expected = plain([rank["batches"] for rank in ranks], optimizer, unfreeze=unfreeze)
    for name, weights in ranks[0]["weights"].items():
        torch.testing.assert_close(torch.tensor(weights), expected[name], rtol=1e-5, atol=atol, msg=name)


def untouched(rank: dict[str, Any]) -> None:
    """What nothing trains is what rank 0 began with: no weight decay, no momentum."""
    for name, parameter in Branches().named_parameters():
        if name.startswith(("frozen", "unknown")):
            assert rank["weights"][name] == parameter.reshape(-1).tolist(), name


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("algorithm", ["sync", "pace", "local", "async"])
def test_alone_layers_without_a_gradient_stay_as_they_are(algorithm: str, optimizer: str) -> None:
    seen = train(algorithm, optimizer, unfreeze=True)
    close_to_plain([seen], optimizer, unfreeze=True)


def test_alone_a_model_of_two_types_trains() -> None:
    """The rounded layers are off by what bfloat16 cannot hold; replicas are compared on two ranks."""
    seen = train("pace", "sgd", mixed=True)
    close_to_plain([seen], "sgd", atol=2e-2)
    assert seen["weights"]["left.weight"] == torch.tensor(seen["weights"]["left.weight"]).bfloat16().tolist()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("algorithm", ["sync", "pace", "local"])
def test_alone_two_models_are_a_plain_loop(algorithm: str, order: str) -> None:
    seen = gan(algorithm, **ORDERS[order])
    expected = plain_gan([seen["batches"]], **ORDERS[order])
    torch.testing.assert_close(torch.tensor(seen["weights"]), expected, rtol=1e-5, atol=1e-6)
    assert seen["samples"] == 64  # each counts once, though both models learn from it
    assert seen["both"] == [True, True, False]
    assert seen["steps"] == {"discriminate": 8, "generate": 8 // ORDERS[order].get("every", 1)}


def test_two_ranks_are_a_plain_loop_over_all_samples(start: Start, tmp_path: Path) -> None:
    ranks = run("essentials", start, tmp_path, "tests.process.scenarios_models")
    for optimizer in OPTIMIZERS:
        close_to_plain([rank[f"sync {optimizer}"] for rank in ranks], optimizer, unfreeze=True)
    for order, options in ORDERS.items():
        expected = plain_gan([rank[order]["batches"] for rank in ranks], **options)
        torch.testing.assert_close(torch.tensor(ranks[0][order]["weights"]), expected, rtol=1e-5, atol=1e-6)
    untouched(ranks[0]["pace"])
    assert "a GradScaler has changed the gradients" in ranks[0]["scaled"]["told"]
    agree(ranks)


@pytest.mark.slow
def test_two_ranks_agree_with_other_algorithms(start: Start, tmp_path: Path) -> None:
    ranks = run("the_rest", start, tmp_path, "tests.process.scenarios_models")
    for name in ("local", "balanced", "async"):
        untouched(ranks[0][name])
    agree(ranks)


def agree(ranks: list[dict[str, dict[str, Any]]]) -> None:
    for name, seen in ranks[0].items():
        assert seen["weights"] == ranks[1][name]["weights"], name
        assert seen["same"] in (True, None), name
        assert seen.get("state") == ranks[1][name].get("state"), name  # who has a state has had a gradient
