"""A model of a user's and its optimizer, as `fleet.wrap` is given them: what is trained, and what is refused."""

from __future__ import annotations

import gc
import types
import warnings
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import UninitializedParameter
from torch.optim import LBFGS, Optimizer, SparseAdam

from ownpace.core.contract.errors import InputError
from ownpace.engines.process.node.flat_steps import elementwise_step
from ownpace.engines.process.node.kept_gradient import KeptGradient
from ownpace.engines.process.node.no_trace import nested
from ownpace.engines.process.node.seen_tensor import SeenTensor

_OWN = ("step", "_step_supports_amp_scaling")
"""The attributes of an optimizer that a fleet replaces."""


class UserPair:
    """A model and the optimizer that steps it. What is trained are the optimizer's parameters, frozen or not."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, clip_norm: float | None = None) -> None:
        check_model(model)
        check_optimizer(optimizer)
        self.model = model
        self.optimizer = optimizer
        self.clip_norm = clip_norm
        named = named_parameters(model, optimizer)
        check_parameters(model, named)
        warn_of_shared_memory(model, named)
        self.names = list(named)
        self.parameters = list(named.values())
        self._known = set(map(id, _all_of(optimizer)))
        # The real step: later, `optimizer.step` is what hands the gradient to the algorithm.
        self._real_step = optimizer.step
        self.elementwise_step = elementwise_step(optimizer)
        """What it does, if it treats every number by itself."""
        self._old: SeenTensor | None = None
        self._kept = KeptGradient()
        self._is_stepping = False
        self.is_scaled = False
        """Whether a GradScaler is about to step."""
        self._before: list[tuple[Optimizer, dict[str, object]]] = []
        self._recurrent = [module for module in model.modules() if isinstance(module, nn.RNNBase)]

    def has_optimizer(self, optimizer: Optimizer) -> bool:
        """Whether it is this one, or inside it."""
        # First by itself: this is asked at every step.
        return optimizer is self.optimizer or any(optimizer is one for one in nested(self.optimizer))

    def step(self) -> None:
        """The optimizer's own step."""
        self._is_stepping = True
        try:
            self._real_step()
        finally:
            self._is_stepping = False

    @property
    def lr(self) -> float:
        """The learning rate, for algorithms that reckon with it."""
        rate = self.optimizer.param_groups[0].get("lr")
        if rate is None:
            raise InputError(
                f"{type(self.optimizer).__name__} has no learning rate (lr=None), but this algorithm reckons with it; "
                "give the optimizer one, or use an algorithm that leaves it to the optimizer, such as pace"
            )
        return float(rate)

    @property
    def has_gradient(self) -> bool:
        """Whether a backward pass has left something in the `.grad`s since `forget_gradient`."""
        gradient = self._first_gradient
        old = self._old
        return gradient is not None and (old is None or not old.is_untouched(gradient))

    @property
    def keeps_gradient(self) -> bool:
        """Whether what a backward pass has left is still there when the next batch is taken: the script accumulates."""
        gradient, old = self._first_gradient, self._old
        if old is None or not old.is_same(gradient):
            return gradient is not None
        # The same tensor was written to: by a backward pass, or by zero_grad(set_to_none=False) of a script that has
        # skipped its batch since. Only scripts that zero in place come here, so nobody else waits for a GPU.
        return not old.is_untouched(gradient) and any(bool(p.grad.any()) for p in self.parameters if p.grad is not None)

    @property
    def _first_gradient(self) -> Tensor | None:
        """It stands for all: a script that does not zero them goes back through the whole model."""
        return next((parameter.grad for parameter in self.parameters if parameter.grad is not None), None)

    def forget_gradient(self) -> None:
        """What is in the `.grad`s now is of steps that were made: a script may zero it later, or in place."""
        gradient = self._first_gradient
        self._old = None if gradient is None else SeenTensor(gradient)

    def watch_kept_gradient(self, thrown_away: Callable[[], None] | None) -> None:
        """Call this if the next backward pass does not add to what the script keeps: it has skipped a step."""
        kept = (p for p in self.parameters if p.grad is not None and p.requires_grad)
        self._kept.watch(None if thrown_away is None else next(kept, None), thrown_away)

    def check_count(self) -> None:
        """Raise if the optimizer was given more parameters, or lost some; quickly, for every step."""
        if sum(len(group["params"]) for group in self.optimizer.param_groups) != len(self._known):
            raise _changed()

    def check_identity(self) -> None:
        """Raise if the optimizer's parameters are not those that it had when it was wrapped."""
        if set(map(id, _all_of(self.optimizer))) != self._known:
            raise _changed()

    # ---- the optimizer's step, while it belongs to a fleet ----

    def replace_step(self, stepped: Callable[[], None]) -> None:
        """Let `optimizer.step()` hand the gradient to the algorithm; the real step is the algorithm's to make."""

        def step(self: Optimizer, closure: object = None) -> None:
            if closure is not None:
                raise InputError(
                    "optimizer.step was given a closure, which would compute gradients within the step; compute the "
                    "gradient before it, as in loss.backward()"
                )
            self._opt_called = True  # type: ignore[attr-defined]  # what torch's schedulers look for
            stepped()

        self._put(self.optimizer, step)
        # A GradScaler is to undo its scale, and to look for infinities, before the gradient goes to the others.
        self.optimizer._step_supports_amp_scaling = AskedByScaler(self)  # type: ignore[attr-defined]
        for inner in nested(self.optimizer)[1:]:
            self._guard(inner)
        for module in self._recurrent:  # on a GPU, it would move the parameters; many call it in every forward pass
            vars(module)["flatten_parameters"] = _stay

    def _guard(self, inner: Optimizer) -> None:
        """Refuse the step of an optimizer inside: it would move this rank's parameters, and nobody else's."""
        real = inner.step

        def step(_: Optimizer, *closure: Callable[[], float], **named: Callable[[], float]) -> object:
            if not self._is_stepping:
                raise InputError(
                    f"the {type(inner).__name__} inside the optimizer was stepped by itself; only optimizer.step() of "
                    "what fleet.wrap was given reaches the other ranks (methods of two steps, such as SAM, do not work)"
                )
            return real(*closure, **named)

        self._put(inner, step)

    def _put(self, optimizer: Optimizer, step: Callable[..., object]) -> None:
        self._before.append((optimizer, {name: vars(optimizer)[name] for name in _OWN if name in vars(optimizer)}))
        # What torch's schedulers look for, to warn of a step that they do not see; this one is seen.
        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
        step.of_a_fleet = True  # type: ignore[attr-defined]
        optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]

    def give_back(self) -> None:
        """Let the optimizers have their own steps again; the parameters have memory of their own by now."""
        for module in self._recurrent:
            vars(module).pop("flatten_parameters", None)
            module.flatten_parameters()
        for optimizer, before in self._before:
            for name in _OWN:
                vars(optimizer).pop(name, None)
            vars(optimizer).update(before)
        self._before = []


class AskedByScaler:
    """Says no to a GradScaler that asks whether the step undoes its scale; and remembers that one has asked.

    It changes gradients in a way that nothing else shows: not even torch counts it.
    """

    def __init__(self, pair: UserPair) -> None:
        self._pair = pair

    def __bool__(self) -> bool:
        self._pair.is_scaled = True
        return False


def named_parameters(model: nn.Module, optimizer: Optimizer) -> dict[str, nn.Parameter]:
    """The optimizer's parameters by name, in the model's order; then those that are not the model's."""
    theirs = {id(parameter): parameter for parameter in _all_of(optimizer)}
    named = {name: theirs.pop(id(p)) for name, p in model.named_parameters() if id(p) in theirs}
    for number, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            if id(parameter) in theirs:
                named[f"parameter {place} of group {number}"] = theirs.pop(id(parameter))
    # Numbers that no gradient moves (quantized weights) only begin as rank 0's, like a model's buffers.
    return {name: parameter for name, parameter in named.items() if not _is_of_integers(parameter)}


def _all_of(optimizer: Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _is_of_integers(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


def check_model(model: nn.Module) -> None:
    """Raise if something else already synchronises the model between processes, or if it is not a model."""
    if not isinstance(model, nn.Module):
        raise InputError(f"fleet.wrap was given a {type(model).__name__} for a model; it must be a torch.nn.Module")
    for name, module in model.named_modules():
        kinds = {cls.__name__ for cls in type(module).__mro__}
        if isinstance(module, DistributedDataParallel | DataParallel) or kinds & {
            "FullyShardedDataParallel",
            "FSDPModule",
        }:
            what = f"its {name}" if name else "it"
            raise InputError(
                f"the model is wrapped already: {what} is a {type(module).__name__}; give the module inside to "
                "fleet.wrap, which does what that would (with Accelerate or Fabric, wrap before they prepare it)"
            )
        if isinstance(module, nn.SyncBatchNorm):
            raise InputError(
                f"{name or 'the model'} is a SyncBatchNorm, which waits for all ranks at every batch, and a fleet does "
                "not; leave out convert_sync_batchnorm: after each loop, all have the mean of their statistics"
            )


def check_not_inside(models: Sequence[nn.Module]) -> None:
    """Raise if a DistributedDataParallel has one of these inside: its sums would wait for batches that nobody has.

    The module inside knows nothing of it, so all objects are looked through, where torch's own group exists at all.
    """
    if not torch.distributed.is_initialized():
        return
    if _has_outside(models):
        gc.collect()  # one that the script has let go of is none
        if _has_outside(models):
            raise InputError(
                "a model that fleet.wrap was given is inside a DistributedDataParallel (the script's, Accelerate's or "
                "Fabric's), whose sums wait for batches that other ranks do not have; leave it out (with Accelerate, "
                "call ownpace.integrations.hf.leave_to_fleet() before Accelerator())"
            )


def _has_outside(models: Sequence[nn.Module]) -> bool:
    ours = {id(parameter) for model in models for parameter in model.parameters()}
    outside = (one for one in gc.get_objects() if issubclass(type(one), DistributedDataParallel))
    return any(id(parameter) in ours for one in outside for parameter in one.parameters())


def check_optimizer(optimizer: Optimizer) -> None:
    """Raise if this is not an optimizer that makes one step of one dense gradient."""
    if not isinstance(optimizer, Optimizer):
        raise InputError(
            f"fleet.wrap was given a {type(optimizer).__name__} for an optimizer; it must be a torch.optim.Optimizer"
        )
    for one in nested(optimizer):
        # Steps in two parts have these names wherever they come from: they write to parameters on one rank alone.
        if isinstance(one, LBFGS | SparseAdam) or (hasattr(one, "first_step") and hasattr(one, "second_step")):
            raise InputError(
                f"{type(one).__name__} cannot be used: it needs more than one dense gradient per step; use SGD, Adam "
                "or another first-order optimizer"
            )
        if getattr(one.step, "of_a_fleet", False):
            raise InputError("the optimizer belongs to a fleet already; end that one, or call its unwrap, before")


def check_parameters(model: nn.Module, named: dict[str, nn.Parameter]) -> None:
    """Raise if the parameters cannot be parts of one vector."""
    if not named:
        raise InputError("the optimizer has no parameters of floating point; there is nothing to train")
    for name, parameter in [*model.named_parameters(), *named.items()]:
        if isinstance(parameter, UninitializedParameter):
            raise InputError(f"{name} has no shape yet; send a batch through the model before fleet.wrap")
        if parameter.is_meta:
            raise InputError(f"{name} is on the meta device and has no values; load or initialise it before fleet.wrap")
        if type(parameter.data).__name__ == "DTensor":
            raise InputError(f"{name} is divided among devices; a fleet trains whole models")
    for name, parameter in named.items():
        if parameter.is_complex():
            raise InputError(
                f"{name} is {parameter.dtype}; a fleet trains real numbers (torch.view_as_real makes them)"
            )
    places: dict[int, str] = {}
    for name, parameter in named.items():
        other = places.setdefault(parameter.data_ptr(), name) if parameter.numel() else name
        if other != name:
            raise InputError(f"{other} and {name} are two parameters in the same memory; make them one nn.Parameter")
    devices = {str(parameter.device): name for name, parameter in named.items()}
    if len(devices) > 1:
        where = ", ".join(f"{name} on {device}" for device, name in sorted(devices.items()))
        raise InputError(f"the model's parameters are on several devices ({where}); move all of them to one")


def warn_of_shared_memory(model: nn.Module, named: dict[str, nn.Parameter]) -> None:
    """Warn if other tensors are in the memory of parameters, which are about to leave it: they will not follow."""
    use_count = getattr(torch._C, "_storage_Use_Count", None)
    if use_count is None:
        return
    # What a module keeps beside its parameters is computed anew by a hook of its own (spectral_norm).
    kept = [value for module in model.modules() if module._forward_pre_hooks for value in vars(module).values()]
    tensors = [
        *named.values(),
        *model.parameters(),
        *model.buffers(),
        *(one for one in kept if isinstance(one, Tensor)),
    ]
    known = {id(tensor): tensor for tensor in tensors}
    # Classes of others may have no memory of their own.
    plain = {key for key, tensor in known.items() if type(tensor.data) is Tensor}
    there = Counter(_address(known[key].untyped_storage()) for key in plain)
    for name, parameter in named.items():
        if id(parameter) not in plain:
            continue
        storage = parameter.untyped_storage()
        is_part = storage.nbytes() != parameter.nbytes  # of a vector, whose other tensors are other parameters
        if not is_part and use_count(_address(storage)) > there[_address(storage)] + 1:  # `storage` itself is one
            warnings.warn(
                f"another tensor is in the memory of {name} (taken by state_dict(), .data or detach()?), which "
                "fleet.wrap gives another place: it will not see the parameter change; take it after fleet.wrap",
                stacklevel=4,
            )
            return


def _address(storage: torch.UntypedStorage) -> int:
    """Of torch's own record of a tensor's memory, by which it counts who uses it."""
    address: int = storage._cdata
    return address


def with_groups(pairs: Sequence[UserPair]) -> list[Optimizer]:
    """The optimizers of the pairs, and those inside them that have parameter groups of their own."""
    found: list[Optimizer] = []
    seen: set[int] = set()
    for optimizer in (one for pair in pairs for one in nested(pair.optimizer)):
        groups = set(map(id, optimizer.param_groups))
        if not groups & seen:  # most wrappers share theirs with what they wrap
            found.append(optimizer)
            seen |= groups
    return found


def check_disjoint(pairs: Sequence[UserPair]) -> None:
    """Raise if the pairs cannot be parts of one vector."""
    seen: dict[int, str] = {}
    for pair in pairs:
        for name, parameter in zip(pair.names, pair.parameters, strict=True):
            if id(parameter) in seen:
                raise InputError(f"{name} is in two optimizers; each parameter can be stepped by one")
            seen[id(parameter)] = name
    devices = sorted({str(pair.parameters[0].device) for pair in pairs})
    if len(devices) > 1:
        raise InputError(f"the models are on several devices ({', '.join(devices)}); move all of them to one")


def check_gradients(names: Sequence[str], gradients: Sequence[Tensor | None]) -> bool:
    """Raise if a layer's gradient is not made of plain numbers, which can be summed; returns whether some have none."""
    some_are_missing = False
    for name, gradient in zip(names, gradients, strict=True):
        if gradient is None:
            some_are_missing = True
        elif gradient.layout is not torch.strided:
            raise InputError(
                f"the gradient of {name} is sparse; make its layer with sparse=False (the default), as sums are dense"
            )
        elif gradient.requires_grad:
            raise InputError(
                f"the gradient of {name} has a graph (create_graph=True), but sums are of plain numbers; leave that "
                "out of backward(); optimizers that need it, such as AdaHessian, cannot be used"
            )
    return some_are_missing


def _stay() -> None:
    """Parameters stay where they are."""


def _changed() -> InputError:
    return InputError(
        "the optimizer has other parameters than when it was wrapped (add_param_group?), and other ranks would not "
        "step them; give the optimizer all parameters before fleet.wrap: frozen ones stay untouched until they have a "
        "gradient"
    )
