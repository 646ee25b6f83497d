"""A process that nobody has told of any others: is it really alone?"""

from __future__ import annotations

import os
import warnings

import pytest
import torch.distributed as dist

import ownpace
from ownpace.engines.process.meet.environment import check_alone

_NAMES = (
    *("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"),
)


@pytest.fixture(autouse=True)
def told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _NAMES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "told", [{}, {"RANK": "0"}, {"WORLD_SIZE": "1"}, {"SLURM_STEP_NUM_TASKS": "1"}, {"MASTER_ADDR": "localhost"}]
)
def test_most_are(told: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_alone()


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"RANK": "1"}, "RANK is 1, but WORLD_SIZE is not set; .* torchrun"),
        ({"WORLD_SIZE": "4"}, "WORLD_SIZE is 4, but RANK is not set; .* torchrun"),
        ({"WORLD_SIZE": "many"}, "WORLD_SIZE is 'many'"),
    ],
)
def test_half_of_what_there_is_to_know_is_refused(
    told: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ownpace.InputError, match=words):
        ownpace.join("sync")


def test_ranks_of_torchs_own_are_refused() -> None:
    """As scripts make them that start their processes with mp.spawn; the other rank is not needed for that."""
    dist.init_process_group("fake", rank=0, world_size=2, store=dist.HashStore())
    try:
        with pytest.raises(ownpace.InputError, match=r"has 2 ranks, but RANK and WORLD_SIZE are not set; .*mp\.spawn"):
            ownpace.join("sync")
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"SLURM_STEP_NUM_TASKS": "4"}, "trains alone, but srun has started 4; to train together, .* torchrun"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "mpirun has started 2"),
        ({"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}, "MASTER_ADDR and MASTER_PORT are set"),
    ],
)
def test_one_of_several_is_warned(told: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    with pytest.warns(UserWarning, match=words):
        ownpace.join("sync")
    assert set(told) <= os.environ.keys()
