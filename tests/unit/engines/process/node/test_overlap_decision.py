"""Whether gradients are sent early, decided by what the first steps do."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ownpace.core.contract.errors import InputError
from ownpace.core.learning.layout import Layout
from ownpace.engines.process.node.overlap import Overlap
from ownpace.engines.process.node.user_pair import UserPair
from ownpace.engines.process.node.user_parameters import UserParameters

WIDTH = 1100
"""Two layers of this width fill two buckets."""


class Script:
    """A loop that has wrapped a net of two buckets."""

    def __init__(self, decided: bool | None) -> None:
        self.net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
        optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.overlap = Overlap(UserParameters([UserPair(self.net, optimizer)]), decided)
        self.overlap.put_hooks()

    def step(self, batches: int = 1, passes: int = 1, clip: bool = False, scaled: bool = False) -> None:
        self.net.zero_grad()
        for _ in range(batches):
            self.overlap.batch()
            for _ in range(passes):
                self.net(torch.ones(1, WIDTH)).sum().backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(self.net.parameters(), 0.1)
        self.overlap.stepped(is_scaled=scaled)

    @property
    def sends_early(self) -> bool:
        """Whether it does, as far as can be seen from outside: it wants a sender for a group of several."""

        class Group:
            alone = False

            def buffer(self):
                return torch.empty(2 * WIDTH * (WIDTH + 1))

            def values(self, buffer):
                return buffer

        self.overlap.send(Group(), Layout(self.net), 4)  # type: ignore[arg-type]
        sender, self.overlap.sender = self.overlap.sender, None
        return sender is not None


@pytest.mark.parametrize("decided", [None, True, False])
def test_a_plain_loop_sends_early_after_three_steps(decided):
    script = Script(decided)
    assert script.sends_early is (decided is True)
    for _ in range(3):
        script.step()
    assert script.sends_early is (decided is not False)


@pytest.mark.parametrize("how", [{"clip": True}, {"scaled": True}, {"batches": 2}, {"passes": 2}])
def test_a_loop_that_touches_or_accumulates_gradients_never_does(how):
    script = Script(None)
    script.step()
    script.step(**how)
    for _ in range(5):
        script.step()
    assert not script.sends_early


def test_accumulating_turns_it_off():
    script = Script(True)
    assert script.sends_early
    script.overlap.turn_off()
    assert not script.sends_early


def test_a_net_in_one_bucket_is_not_watched():
    net = nn.Linear(3, 2)
    overlap = Overlap(UserParameters([UserPair(net, torch.optim.SGD(net.parameters(), lr=0.1))]), True)
    overlap.put_hooks()
    net(torch.ones(1, 3)).sum().backward()
    assert overlap.sender is None
    assert not net.weight._post_accumulate_grad_hooks


def test_two_models_are_never_sent_early():
    nets = [nn.Linear(2, 2), nn.Linear(2, 2)]
    pairs = [UserPair(net, torch.optim.SGD(net.parameters(), lr=0.1)) for net in nets]
    overlap = Overlap(UserParameters(pairs), None)
    overlap.put_hooks()
    nets[0](torch.ones(1, 2)).sum().backward()
    overlap.stepped(is_scaled=False)  # and nothing is watched


def test_what_is_on_its_way_cannot_be_taken_back():
    script = Script(True)
    assert script.sends_early

    class Sender:
        has_begun = True

    script.overlap.sender = Sender()  # type: ignore[assignment]
    for act in (script.overlap.batch, script.overlap.turn_off, lambda: script.overlap.stepped(is_scaled=True)):
        with pytest.raises(InputError, match=r"overlap=False"):
            act()
