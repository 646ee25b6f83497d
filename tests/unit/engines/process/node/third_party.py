"""Optimizers as others write them, small: what each keeps, and where, is what matters here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Parameters = Iterable[nn.Parameter]


class ScheduleFree(Optimizer):
    """As in schedule-free learning: counts and weights are in the groups, and parameters have two modes."""

    def __init__(self, params: Parameters, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "k": 0, "weight_sum": 0.0, "lr_max": -1.0, "train_mode": True})

    def eval(self) -> None:
        self._move(False)

    def train(self) -> None:
        self._move(True)

    @torch.no_grad()
    def _move(self, to_train: bool) -> None:
        for group in self.param_groups:
            if group["train_mode"] != to_train:
                for p in group["params"]:
                    if "z" in self.state[p]:
                        p.lerp_(self.state[p]["z"], 0.1 if to_train else 1 - 1 / 0.9)
                group["train_mode"] = to_train

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            assert group["train_mode"]
            group["k"] += 1
            group["lr_max"] = max(group["lr_max"], group["lr"])
            weight = group["k"] * group["lr_max"] ** 2
            group["weight_sum"] += weight
            ckp1 = weight / group["weight_sum"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                z = self.state[p].setdefault("z", p.detach().clone())
                p.lerp_(z, ckp1)
                p.add_(p.grad, alpha=group["lr"] * (0.9 * (1 - ckp1) - 1))
                z.sub_(p.grad, alpha=group["lr"])


class Prodigy(Optimizer):
    """Its estimate of the distance is in the groups, as a number that grows, and a running tensor is beside it."""

    def __init__(self, params: Parameters, lr: float = 1.0) -> None:
        super().__init__(params, {"lr": lr, "d": 1e-2, "k": 0, "running": torch.zeros(())})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    s = self.state[p].setdefault("s", torch.zeros_like(p))
                    s.add_(p.grad, alpha=group["d"])
                    group["running"] += s.abs().sum()
                    p.sub_(p.grad, alpha=group["d"] * group["lr"])
            group["d"] *= 1.0 + 0.01 * float(group["running"])
            group["k"] += 1


class Lion(Optimizer):
    def __init__(self, params: Parameters, lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    m = self.state[p].setdefault("m", torch.zeros_like(p))
                    p.sub_(torch.sign(m * 0.9 + p.grad * 0.1), alpha=group["lr"])
                    m.lerp_(p.grad, 0.01)


class Wrapper(Optimizer):
    """A wrapper whose own state is not that of the optimizer inside, which does the work."""

    def __init__(self, inner: Optimizer) -> None:
        super().__init__([{**group} for group in inner.param_groups], {})
        self.inner = inner

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for ours, theirs in zip(self.param_groups, self.inner.param_groups, strict=True):
            theirs["lr"] = ours["lr"]
        self.inner.step(closure=closure)  # as those of others do, by name


class Preconditioner:
    """An object in a state, with tensors of its own."""

    def __init__(self, p: Tensor) -> None:
        self.sum = torch.zeros_like(p)
        self.history: list[float] = []

    def of(self, gradient: Tensor) -> Tensor:
        self.sum += gradient.square()
        self.history.append(float(self.sum.sum()))
        return gradient / (self.sum.sqrt() + 1)


class Clock:
    def __init__(self) -> None:
        self.ticks = 0


class Keeper(Optimizer):
    """State everywhere but where torch looks: attributes, defaults, objects, a view, a generator."""

    def __init__(self, params: Parameters, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "total": 0})
        self.t = 0
        self.clock = Clock()
        sizes = [p.numel() for group in self.param_groups for p in group["params"]]
        self.flat = torch.zeros(sum(sizes))
        self.parts = list(self.flat.split(sizes))  # views: what is added to one is in the other
        self.noise = torch.Generator().manual_seed(1)
        self.seen: dict[str, list[float]] = {"norms": []}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.t += 1
        self.clock.ticks += 1
        self.defaults["total"] += 1
        self.flat.mul_(0.9)
        (group,) = self.param_groups
        for p, part in zip(group["params"], self.parts, strict=True):
            if p.grad is not None:
                state = self.state[p]
                if not state:
                    state["preconditioner"] = Preconditioner(p)
                part.add_(state["preconditioner"].of(p.grad).reshape(-1))
                p.sub_(part.view_as(p), alpha=group["lr"] / self.t)
                p.add_(torch.randn(p.shape, generator=self.noise), alpha=1e-3)
                p.add_(torch.randn(p.shape), alpha=1e-3)
        self.seen["norms"].append(float(self.flat.norm()))


def _muon(net: nn.Module) -> Optimizer:
    return torch.optim.Muon([p for p in net.parameters() if p.dim() == 2], lr=0.02)


def _of(kind: Callable[..., Optimizer], **options: Any) -> Callable[[nn.Module], Optimizer]:
    return lambda net: kind(net.parameters(), **options)


_TORCHS = (
    "ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD",
)  # fmt: skip
KINDS: dict[str, Callable[[nn.Module], Optimizer]] = {
    **{name: _of(getattr(torch.optim, name)) for name in _TORCHS if hasattr(torch.optim, name)},
    "SGD with momentum": _of(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "Adam with a tensor": _of(torch.optim.Adam, lr=torch.tensor(0.01), capturable=False, foreach=False),
    "AdamW, amsgrad": _of(torch.optim.AdamW, amsgrad=True, weight_decay=0.1),
    **({"Muon": _muon} if hasattr(torch.optim, "Muon") else {}),
    "schedule-free": _of(ScheduleFree),
    "Prodigy": _of(Prodigy),
    "Lion": _of(Lion),
    "wrapper": lambda net: Wrapper(torch.optim.Adam(net.parameters(), lr=0.01)),
    "wrapper of a wrapper": lambda net: Wrapper(Wrapper(ScheduleFree(net.parameters()))),
    "state everywhere": _of(Keeper),
}
"""How to make one of each kind."""
