"""How many threads a run gets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from ownpace import Config
from ownpace.engines.threads import threads_that_pay


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("batch_size", "timing_only", "threads"), [(32, False, 1), (1024, False, 2), (32, True, 2)])
def test_tiny_nets_get_one_thread_while_they_run(batch_size: int, timing_only: bool, threads: int) -> None:
    job = Config(task="digits", batch_size=batch_size, timing_only=timing_only).job()
    with threads_that_pay(job):
        assert torch.get_num_threads() == threads
    assert torch.get_num_threads() == 2
