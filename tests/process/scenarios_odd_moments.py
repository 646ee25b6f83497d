"""What scripts do at odd moments, on two ranks: `torchrun … -m tests.process.scenarios_odd_moments … FOLDER`."""

from __future__ import annotations

import gc
import json
import sys
import warnings
from pathlib import Path

import torch
from tests.process.small_net import RANK, flat
from tests.process.started import PATIENCE_S
from torch import nn
from torch.utils.data import DataLoader

import ownpace

SHIFTED = torch.utils.data.TensorDataset(torch.randn(80, 2, generator=torch.Generator().manual_seed(0)) + 3)


def touched(how: str, *, overlap: bool | None) -> torch.Tensor:
    """A loop that changes gradients in ways that torch does not count."""
    torch.manual_seed(1)
    # Several buckets: in one, nothing would leave early.
    net = nn.Sequential(nn.Linear(2, 1100), nn.Linear(1100, 1100), nn.Linear(1100, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
    with ownpace.join("sync", quiet=True) as fleet:
        fleet.wrap(net, optimizer, overlap=overlap)
        for (x,) in fleet.batches(SHIFTED, 4, sampling="shards"):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            for parameter in net.parameters():
                assert parameter.grad is not None
                if how == "data":
                    parameter.grad.data.clamp_(-0.01, 0.01)
                else:
                    parameter.grad = parameter.grad.clamp(-0.01, 0.01)
            optimizer.step()
    return flat(net)


def skipped(*, overlap: bool | None) -> torch.Tensor:
    """A loop that throws a gradient away, long after the first steps."""
    torch.manual_seed(1)
    net = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with ownpace.join("sync", quiet=True) as fleet:
        fleet.wrap(net, optimizer, overlap=overlap)
        for number, (x,) in enumerate(fleet.batches(SHIFTED, 4, sampling="shards")):
            net(x).square().mean().backward()
            if number != 6:
                optimizer.step()
            optimizer.zero_grad()
    return flat(net)


def refusal(how: str) -> str:
    try:
        touched(how, overlap=True)
    except ownpace.InputError as error:
        return str(error)
    return ""


def clamped(algorithm: str, *, by_hook: bool) -> str:
    """A loop that bounds its weights after every step, or in a hook that every update calls: how it ends."""
    torch.manual_seed(1)
    net = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def clamp(*_: object) -> None:
        for parameter in net.parameters():
            parameter.data.clamp_(-0.05, 0.05)

    if by_hook:
        optimizer.register_step_post_hook(clamp)
    try:
        with ownpace.join(algorithm, quiet=True) as fleet:
            fleet.wrap(net, optimizer)
            for (x,) in fleet.batches(SHIFTED, 4, epochs=2):
                optimizer.zero_grad()
                net(x).square().mean().backward()
                optimizer.step()
                if not by_hook:
                    clamp()
    except ownpace.OwnpaceError as error:
        return str(error)
    assert fleet.summary is not None
    assert fleet.summary.replicas_identical is not False
    return f"at most {float(flat(net).abs().max()):.2f}"


def generator_seen_by_others() -> list[float]:
    """Only rank 1 steps the generator; what is it on this rank, batch by batch?"""
    torch.manual_seed(1)
    generator, critic = nn.Linear(2, 2), nn.Linear(2, 1)
    of_generator = torch.optim.SGD(generator.parameters(), lr=0.1)
    of_critic = torch.optim.SGD(critic.parameters(), lr=0.01)
    seen = []
    with ownpace.join("sync", quiet=True) as fleet:
        fleet.wrap(generator, of_generator)
        fleet.wrap(critic, of_critic)
        for (x,) in fleet.batches(SHIFTED, 8, sampling="shards"):
            seen.append(float(generator.weight.detach().sum()))
            of_critic.zero_grad()
            (critic(generator(x).detach()).mean() - critic(x).mean()).backward()
            of_critic.step()
            if RANK == 1:
                of_generator.zero_grad()
                generator(x).square().mean().backward()
                of_generator.step()
    return seen


def told_of_center(*, by_hook: bool) -> list[str]:
    """A parameter that no optimizer has, and that follows the data (self-distillation, say): what is warned of."""
    torch.manual_seed(1)
    net = nn.Linear(2, 1)
    net.center = nn.Parameter(torch.zeros(2), requires_grad=False)
    optimizer = torch.optim.SGD([net.weight, net.bias], lr=0.01)

    def follow(*_: object) -> None:
        net.center.data.lerp_(net.weight.data[0], 0.1)

    if by_hook:
        optimizer.register_step_post_hook(follow)
    with warnings.catch_warnings(record=True) as caught, ownpace.join("sync", quiet=True) as fleet:
        warnings.simplefilter("always")
        fleet.wrap(net, optimizer)
        for (x,) in fleet.batches(SHIFTED, 8):
            optimizer.zero_grad()
            net(x - net.center).square().mean().backward()
            optimizer.step()
            if not by_hook:
                net.center.data.lerp_(x.mean(0), 0.1)
    return [str(one.message) for one in caught]


def collect(worker: int) -> None:
    gc.collect()


def main() -> None:
    torch.set_num_threads(1)
    found = {
        how: float((touched(how, overlap=False) - touched(how, overlap=None)).abs().max()) for how in ("data", "other")
    }
    found["skipped"] = float((skipped(overlap=False) - skipped(overlap=None)).abs().max())
    seen = generator_seen_by_others()
    centers = [told_of_center(by_hook=by_hook) for by_hook in (False, True)]
    # After a fleet: its groups are garbage by then, which a worker must not free.
    loader = DataLoader(SHIFTED, 20, num_workers=1, worker_init_fn=collect, timeout=PATIENCE_S)
    loaded = sum(len(x) for (x,) in loader)
    refusals = [refusal(how) for how in ("data", "other")]
    clamps = {how: clamped(how.split(",")[0], by_hook="hook" in how) for how in ("pace", "async", "pace, hook", "sync")}
    told = {"off": found, "seen": seen, "refusals": refusals, "clamps": clamps, "centers": centers, "loaded": loaded}
    Path(sys.argv[2], f"{RANK}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
