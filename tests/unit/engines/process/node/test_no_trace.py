from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.unit.engines.process.node.third_party import KINDS, Preconditioner, Wrapper
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ownpace.engines.process.node.no_trace import nested, no_trace


def everything(value: Any, seen: set[int] | None = None) -> Any:
    """All that an optimizer keeps, as something that can be compared."""
    seen = set() if seen is None else seen
    if isinstance(value, Tensor):
        return ("tensor", tuple(value.shape), value.detach().reshape(-1).tolist())
    if isinstance(value, torch.Generator):
        return value.get_state().tolist()
    if isinstance(value, dict):
        return {k if isinstance(k, str) else i: everything(v, seen) for i, (k, v) in enumerate(value.items())}
    if isinstance(value, list | tuple):
        return [everything(v, seen) for v in value]
    if isinstance(value, Optimizer) or type(value).__module__ == Preconditioner.__module__:
        if id(value) in seen:
            return "again"
        seen.add(id(value))
        return everything(vars(value), seen)
    return value if isinstance(value, int | float | str | type(None)) else type(value).__name__


def make(kind: str) -> tuple[nn.Module, Tensor, Optimizer]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    values = torch.cat([p.detach().reshape(-1) for p in net.parameters()])
    for p, part in zip(net.parameters(), values.split([p.numel() for p in net.parameters()]), strict=True):
        p.data = part.view_as(p)
    return net, values, KINDS[kind](net)


def give_gradients(net: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for p in net.parameters():
        p.grad = torch.randn(p.shape, generator=generator)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_leaves_no_trace_and_is_what_the_real_one_will_be(kind: str) -> None:
    net, values, optimizer = make(kind)
    called: list[str] = []
    handles = [
        optimizer.register_step_pre_hook(lambda *_: called.append("pre")),
        optimizer.register_step_post_hook(lambda *_: called.append("post")),
        register_optimizer_step_pre_hook(lambda *_: called.append("all pre")),
        register_optimizer_step_post_hook(lambda *_: called.append("all post")),
    ]
    for number in range(3):
        give_gradients(net, number)
        objects = {name: id(value) for name, value in vars(optimizer).items()}
        before, was, random = copy.deepcopy(everything(optimizer)), values.clone(), torch.get_rng_state()
        called.clear()
        with no_trace([optimizer], values):
            optimizer.step()
            peeked = values.clone()
        assert called == []
        assert everything(optimizer) == before
        assert {name: id(value) for name, value in vars(optimizer).items()} == objects
        assert torch.equal(values, was)
        assert torch.equal(torch.get_rng_state(), random)
        optimizer.step()
        assert torch.equal(values, peeked)
        assert not torch.equal(values, was)
        assert set(called) == {"pre", "post", "all pre", "all post"}
    for handle in handles:
        handle.remove()


def test_a_step_that_fails_leaves_no_trace_either() -> None:
    net, values, optimizer = make("wrapper")
    give_gradients(net, 0)
    optimizer.step()
    before = copy.deepcopy(everything(optimizer))

    def fail() -> None:
        with no_trace([optimizer], values):
            optimizer.step()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert everything(optimizer) == before


def test_optimizers_inside_are_found_wherever_they_are() -> None:
    net = nn.Linear(2, 2)
    inner = [torch.optim.SGD(net.parameters(), lr=0.1) for _ in range(3)]
    outer = Wrapper(inner[0])
    outer.more = {"one": inner[1], "all": [inner[0]]}  # type: ignore[attr-defined]
    inner[1].again = [outer, inner[2]]  # type: ignore[attr-defined]
    assert nested(outer) == [outer, *inner]


def test_tensors_are_copied_once() -> None:
    """As many copies as the state has tensors, and one of the parameters, whatever refers to them."""
    net, values, optimizer = make("AdamW")
    give_gradients(net, 0)
    optimizer.step()
    with torch.profiler.profile(acc_events=True) as profile, no_trace([optimizer], values):
        pass
    clones = sum(event.count for event in profile.key_averages() if event.key == "aten::clone")
    tensors = sum(isinstance(v, Tensor) for state in optimizer.state.values() for v in state.values())
    assert clones <= tensors + 1 + 2  # and two of the generator's state
