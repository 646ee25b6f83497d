"""Models and optimizers of all kinds, on two ranks: `torchrun … -m tests.process.scenarios_models NAME FOLDER`."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from tests.process.small_net import RANK, Numbers
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

import ownpace

SIZE = 64


class Branches(nn.Module):
    """Two branches, of which a batch may use one or both; and layers that are frozen, or no optimizer's."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.trunk = nn.Linear(6, 8)
        self.left = nn.Linear(8, 3)
        self.right = nn.Linear(8, 3)
        self.frozen = nn.Linear(3, 3)
        self.unknown = nn.Linear(3, 3)
        for parameter in self.frozen.parameters():
            parameter.requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(3))  # used now and then, and rounded if the model is of two types

    def forward(self, x: Tensor, branches: str) -> Tensor:
        hidden = torch.tanh(self.trunk(x))
        out = torch.zeros(len(x), 3)
        if "left" in branches:
            out = out + self.left(hidden)
        if "right" in branches:
            out = out + self.right(hidden) * self.scale.float()
        return torch.as_tensor(self.unknown(self.frozen(out)))

    def trained(self) -> list[nn.Parameter]:
        return [p for name, p in self.named_parameters() if not name.startswith("unknown")]


def sgd(net: Branches) -> Optimizer:
    return SGD(net.trained(), lr=0.1, momentum=0.9, weight_decay=0.1)


def adamw(net: Branches) -> Optimizer:
    return AdamW(net.trained(), lr=0.01, weight_decay=0.1)


OPTIMIZERS: dict[str, Callable[[Branches], Optimizer]] = {"sgd": sgd, "adamw": adamw}
PARAMETERS: dict[str, dict[str, Any]] = {"local": {"steps": 2}, "abs": {"max_batch": 32}}
HALVES: dict[str, Any] = {"sampling": "shards"}


def branches_of(number: int, rank: int) -> str:
    """Which branches a rank's batch uses: for two batches nobody uses the right one, then only rank 1 does."""
    return ["left", "left", "left right" if rank else "left", "right"][number % 4]


def train(
    algorithm: str,
    optimizer: str,
    *,
    mixed: bool = False,
    unfreeze: bool = False,
    overlap: bool = False,
    **batches: Any,
) -> dict[str, Any]:
    """A user's loop over batches that use some layers only; returns what this rank saw."""
    net = Branches(seed=RANK)
    if mixed:
        net.left.bfloat16()
        net.scale.data = net.scale.data.bfloat16()
    stepper = OPTIMIZERS[optimizer](net)
    seen: list[list[int]] = []
    with ownpace.join(algorithm, parameters=PARAMETERS.get(algorithm)) as fleet:
        fleet.wrap(net, stepper, overlap=overlap)
        for number, (x, y, indices) in enumerate(fleet.batches(Numbers(SIZE), 8, **batches)):
            seen.append(indices.tolist())
            if unfreeze and number == 2:
                for parameter in net.frozen.parameters():
                    parameter.requires_grad_(True)
            loss_of(net, x, y, branches_of(number, RANK)).backward()
            stepper.step()
            stepper.zero_grad()
    assert fleet.summary is not None
    return {
        "batches": seen,
        "weights": {name: p.detach().float().reshape(-1).tolist() for name, p in net.named_parameters()},
        "state": sorted(stepper.state_dict()["state"]),
        "same": fleet.summary.replicas_identical,
    }


def scaled() -> dict[str, Any]:
    """A GradScaler with overlap: by the time it divides by its scale, gradients are on their way."""
    net = Branches()
    net.wide = nn.Linear(1500, 1500)  # a bucket of its own: with one alone, nothing leaves early
    stepper = sgd(net)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    told = ""
    try:
        with ownpace.join("sync") as fleet:
            fleet.wrap(net, stepper, overlap=True)
            for x, y, _ in fleet.batches(Numbers(SIZE), 8):
                scaler.scale(loss_of(net, x, y, "left right")).backward()
                scaler.step(stepper)
                scaler.update()
                stepper.zero_grad()
    except ownpace.InputError as error:
        told = str(error)
    return {"told": told, "weights": [], "same": True}


def loss_of(net: Branches, x: Tensor, y: Tensor, branches: str) -> Tensor:
    if net.left.weight.dtype == torch.bfloat16:
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(net(x, branches).float(), y)
    return F.cross_entropy(net(x, branches), y)


def plain(batches: list[list[list[int]]], optimizer: str, *, unfreeze: bool = False) -> dict[str, Tensor]:
    """What one machine makes of the batches of all ranks, each update over all samples."""
    net, data = Branches(), Numbers(SIZE)
    stepper = OPTIMIZERS[optimizer](net)
    for number, parts in enumerate(zip(*batches, strict=True)):
        if unfreeze and number == 2:
            for parameter in net.frozen.parameters():
                parameter.requires_grad_(True)
        samples = sum(map(len, parts))
        for rank, part in enumerate(parts):
            loss = loss_of(net, data.x[part], data.y[part], branches_of(number, rank))
            (loss * len(part) / samples).backward()
        stepper.step()
        stepper.zero_grad()
    return {name: parameter.detach().reshape(-1) for name, parameter in net.named_parameters()}


# ---- two models ----


class Gan:
    """A generator and a discriminator, each with its optimizer, and the usual loop around them."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.generator = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 6))
        self.discriminator = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
        self.generate = torch.optim.Adam(self.generator.parameters(), lr=0.02, betas=(0.5, 0.99))
        self.discriminate = SGD(self.discriminator.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)

    def losses_of_discriminator(self, real: Tensor, fake: Tensor) -> Tensor:
        return F.softplus(-self.discriminator(real)).mean() + F.softplus(self.discriminator(fake)).mean()

    def loss_of_generator(self, fake: Tensor) -> Tensor:
        return F.softplus(-self.discriminator(fake)).mean()

    def weights(self) -> list[float]:
        parameters = [*self.generator.parameters(), *self.discriminator.parameters()]
        return torch.cat([p.detach().reshape(-1) for p in parameters]).tolist()


def noise(indices: Tensor) -> Tensor:
    """The same for the same samples."""
    return torch.stack([torch.sin(indices * 1.7), torch.cos(indices * 2.3)], 1).float()


def gan(algorithm: str, *, generator_first: bool = False, every: int = 1, **batches: Any) -> dict[str, Any]:
    """A GAN's loop. As in most scripts, the generator's samples are made once and used in both steps."""
    it = Gan(seed=RANK)
    seen: list[list[int]] = []
    steps = {"generate": 0, "discriminate": 0}
    for name in steps:

        def count(*_: object, name: str = name) -> None:
            steps[name] += 1

        getattr(it, name).register_step_post_hook(count)
    with ownpace.join(algorithm, parameters=PARAMETERS.get(algorithm)) as fleet:
        fleet.wrap(it.generator, it.generate, clip_norm=0.5)
        fleet.wrap(it.discriminator, it.discriminate)
        for number, (x, _, indices) in enumerate(fleet.batches(Numbers(SIZE), 8, **batches)):
            seen.append(indices.tolist())
            fake = it.generator(noise(indices))

            def discriminate(x: Tensor = x, fake: Tensor = fake) -> None:
                it.discriminate.zero_grad()
                it.losses_of_discriminator(x, fake.detach()).backward()
                it.discriminate.step()

            def generate(fake: Tensor = fake) -> None:
                it.generate.zero_grad()
                it.loss_of_generator(fake).backward()
                it.generate.step()

            if generator_first:
                generate()
                discriminate()
            else:
                discriminate()
                if number % every == 0:
                    generate()
        both = fleet.evaluate(lambda g, d: [g is it.generator, d is it.discriminator, g.training or d.training])
    assert fleet.summary is not None
    summary = fleet.summary
    return {
        "batches": seen,
        "weights": it.weights(),
        "both": both,
        "steps": steps,
        "same": summary.replicas_identical,
        "samples": summary.samples,
        "updates": summary.updates,
    }


def plain_gan(batches: list[list[list[int]]], *, generator_first: bool = False, every: int = 1) -> Tensor:
    it, data = Gan(), Numbers(SIZE)
    for number, parts in enumerate(zip(*batches, strict=True)):
        indices = torch.tensor([index for part in parts for index in part])
        fake = it.generator(noise(indices))

        def discriminate(fake: Tensor = fake, indices: Tensor = indices) -> None:
            it.discriminate.zero_grad()
            it.losses_of_discriminator(data.x[indices], fake.detach()).backward()
            it.discriminate.step()

        def generate(fake: Tensor = fake) -> None:
            it.generate.zero_grad()
            it.loss_of_generator(fake).backward()
            nn.utils.clip_grad_norm_(it.generator.parameters(), 0.5)
            it.generate.step()

        if generator_first:
            generate()
            discriminate()
        else:
            discriminate()
            if number % every == 0:
                generate()
    return torch.tensor(it.weights())


def essentials() -> dict[str, Any]:
    """What can be compared with a plain loop, and what the default algorithm makes of it, on one start of two ranks."""
    seen: dict[str, Any] = {
        f"sync {optimizer}": train("sync", optimizer, unfreeze=True, overlap=optimizer == "sgd", **HALVES)
        for optimizer in OPTIMIZERS
    }
    seen["scaled"] = scaled()
    seen["gan"] = gan("sync", **HALVES)
    seen["gan, generator first"] = gan("sync", generator_first=True, **HALVES)
    seen["gan, every second"] = gan("sync", every=2, **HALVES)
    seen["pace"] = train("pace", "adamw", epochs=2)
    seen["mixed pace"] = train("pace", "sgd", mixed=True, epochs=2)
    seen["gan pace"] = gan("pace", epochs=2)
    return seen


def the_rest() -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for algorithm in ("local", "balanced", "async"):
        seen[algorithm] = train(algorithm, "adamw", epochs=2)
    for algorithm in ("sync", "local", "async"):
        seen[f"mixed {algorithm}"] = train(algorithm, "sgd", mixed=True, epochs=2)
    for algorithm in ("local", "balanced", "abs"):
        seen[f"gan {algorithm}"] = gan(algorithm, epochs=2)
    return seen


def main() -> None:
    scenario, folder = sys.argv[1:]
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    seen = globals()[scenario]()
    (Path(folder) / f"{RANK}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
