"""What `model.state_dict()` holds while a fleet has the model: the global parameters, each in memory of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from ownpace.core.contract.errors import InputError
from ownpace.engines.process.node.user_parameters import UserParameters


@contextmanager
def global_state_dicts(
    models: Iterable[nn.Module], user: UserParameters, global_values: Callable[[], Tensor]
) -> Iterator[None]:
    """Let state dictionaries of these models, and of their parts, have the global parameters.

    In a loop a model may be at a point where a gradient is wanted, or in the middle of a round of local steps: a
    checkpoint made of that would not be the model. And its parameters are parts of one vector: saved as they are, each
    of them would take the whole vector along.
    """
    put_global = _PutGlobal(user, global_values)
    modules = {id(module): module for model in models for module in model.modules()}
    hooks = [module.register_state_dict_post_hook(put_global) for module in modules.values()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class _PutGlobal:
    """A hook on a module's `state_dict`."""

    def __init__(self, user: UserParameters, global_values: Callable[[], Tensor]) -> None:
        named = zip(user.layout.layers, user.parameters, strict=True)
        self._layers = {id(parameter): layer for layer, parameter in named}
        self._global_values = global_values

    def __call__(self, module: nn.Module, state: dict[str, object], prefix: str, metadata: object) -> None:
        values = self._global_values()
        for name, parameter in module.named_parameters(recurse=False):
            layer, key = self._layers.get(id(parameter)), prefix + name
            # With `keep_vars`, the parameters themselves are wanted.
            if layer is not None and not isinstance(state.get(key, parameter), nn.Parameter):
                state[key] = layer.view(values[layer.start : layer.stop]).to(parameter.dtype, copy=True)

    def __deepcopy__(self, memo: object) -> _PutGlobal:
        return self  # a copy of a model (an EMA, say) has parameters of its own, which are not known here

    def __reduce__(self) -> str | tuple[object, ...]:
        raise InputError(
            "a whole model was pickled while a fleet trains it, at whatever point it is; save model.state_dict(), "
            "which is the model, or do it after the `with` block"
        )
