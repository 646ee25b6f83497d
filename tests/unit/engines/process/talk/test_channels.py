"""Waiting for collectives of a backend that this machine does not have."""

from __future__ import annotations

import pytest

from ownpace.core.contract.errors import PeerLost
from ownpace.engines.process.talk.channels import AskedWork, finish


class SlowWork:
    """Work as NCCL has it: it may be asked any number of times, but a wait before it is done is the end."""

    def __init__(self, questions: int, failure: str = "") -> None:
        self.questions = questions
        self.failure = failure
        self.waited = 0

    def is_completed(self) -> bool:
        self.questions -= 1
        return self.questions <= 0

    def wait(self, timeout: object = None) -> None:
        assert self.questions <= 0
        self.waited += 1
        if self.failure:
            raise RuntimeError(self.failure)


def test_a_sum_that_takes_longer_than_a_tick_is_waited_for():
    work, ticks = SlowWork(questions=3000), []
    finish([AskedWork(work)], "workers", lambda: ticks.append(1))
    assert ticks
    assert work.waited == 1


def test_a_failure_is_that_of_a_member():
    with pytest.raises(PeerLost, match="a member of workers is gone: connection closed"):
        finish([AskedWork(SlowWork(1, "connection closed"))], "workers", lambda: None)
