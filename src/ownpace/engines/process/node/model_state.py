"""What `model.state_dict()` holds while a fleet has the model: the global parameters, each in memory of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn

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
    layers = {id(parameter): layer for layer, parameter in zip(user.layout.layers, user.parameters, strict=True)}

    def put_global(module: nn.Module, state: dict[str, object], prefix: str, metadata: object) -> None:
        values = global_values()
        for name, parameter in module.named_parameters(recurse=False):
            layer, key = layers.get(id(parameter)), prefix + name
            # With `keep_vars`, the parameters themselves are wanted.
            if layer is not None and not isinstance(state.get(key, parameter), nn.Parameter):
                state[key] = layer.view(values[layer.start : layer.stop]).to(parameter.dtype, copy=True)

    modules = {id(module): module for model in models for module in model.modules()}
    hooks = [module.register_state_dict_post_hook(put_global) for module in modules.values()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
