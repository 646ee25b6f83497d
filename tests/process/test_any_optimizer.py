"""Any optimizer in a fleet of one: it ends as after a plain loop, whether the algorithm looks ahead or not."""

from __future__ import annotations

import pytest
import torch
from tests.process.small_net import Numbers, flat, make_net, mean_loss
from tests.process.started import PATIENCE_S
from tests.unit.engines.process.node.test_no_trace import everything
from tests.unit.engines.process.node.third_party import KINDS
from torch.optim import Optimizer

import ownpace

pytestmark = pytest.mark.timeout(2 * PATIENCE_S)


def count_steps(optimizer: Optimizer) -> list[int]:
    steps = [0]
    optimizer.register_step_post_hook(lambda *_: steps.__setitem__(0, steps[0] + 1))
    return steps


@pytest.mark.parametrize("kind", KINDS)
def test_looking_ahead_leaves_the_optimizer_as_a_plain_loop_does(kind: str) -> None:
    net, data = make_net(), Numbers(48)
    optimizer = KINDS[kind](net)
    steps = count_steps(optimizer)
    batches = []
    with ownpace.join("pace") as fleet:
        fleet.wrap(net, optimizer)
        torch.manual_seed(3)  # for those that draw noise
        for x, y, indices in fleet.batches(data, 8):
            batches.append(indices)
            mean_loss(net, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
    alone = make_net()
    other = KINDS[kind](alone)
    other_steps = count_steps(other)
    torch.manual_seed(3)
    for indices in batches:
        mean_loss(alone, data.x[indices], data.y[indices]).backward()
        other.step()
        other.zero_grad()
    if kind != "state everywhere":  # its noise is drawn once more often: a loader has drawn its seed
        assert torch.equal(flat(net), flat(alone))
    assert steps == other_steps == [6]
    for one in (optimizer, other):
        for name in ("step", "_step_supports_amp_scaling", "_opt_called"):
            vars(one).pop(name, None)
    if kind != "state everywhere":
        assert everything(optimizer) == everything(other)
    else:
        assert (optimizer.t, optimizer.clock.ticks, optimizer.defaults["total"]) == (6, 6, 6)  # type: ignore[attr-defined]
