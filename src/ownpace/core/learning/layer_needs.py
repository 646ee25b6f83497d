"""Which layers a forward pass needs next, told by hooks on the modules of a model.

A module's own parameters are needed when it is called. But a forward pass may also use those of a module that it never
calls, or before it calls it: attention does so with its output projection, tied weights with the other's. So the first
pass is recorded: whatever it uses for the first time is needed, from then on, by the module that was called last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch import nn
from torch.overrides import TorchFunctionMode

OnNeed = Callable[[int], None]
"""Called with a layer's number: that layer and all below it are needed now."""


class LayerNeeds:
    """The layers that each module of a model needs."""

    def __init__(self, module: nn.Module, parameters: Sequence[nn.Parameter]) -> None:
        self._num_layers = len(parameters)
        self._layers = {id(parameter): index for index, parameter in enumerate(parameters)}
        self._needs: dict[nn.Module, int] = {}
        self._is_recorded = False
        self._on_need: OnNeed | None = None
        self._last = module
        for each in module.modules():
            own = [self._layers[id(p)] for p in each.parameters(recurse=False) if id(p) in self._layers]
            if own:
                self._needs[each] = max(own)
            each.register_forward_pre_hook(self._enter)

    @contextmanager
    def told(self, on_need: OnNeed) -> Iterator[None]:
        """Tell of layers before the forward pass inside of this uses them; in the first one, of all at its start."""
        if not self._is_recorded:
            on_need(self._num_layers - 1)
            with _Recorder(self._uses, self._layers):
                yield
            self._is_recorded = True
            return
        self._on_need = on_need
        try:
            yield
        finally:
            self._on_need = None

    def _enter(self, module: nn.Module, inputs: object) -> None:
        self._last = module
        if self._on_need is not None and module in self._needs:
            self._on_need(self._needs[module])

    def _uses(self, layer: int) -> None:
        self._needs[self._last] = max(layer, self._needs.get(self._last, 0))


class _Recorder(TorchFunctionMode):
    """Sees every use of a parameter, and tells of the first."""

    def __init__(self, uses: Callable[[int], None], layers: dict[int, int]) -> None:
        super().__init__()
        self._uses = uses
        self._layers = dict(layers)

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: Sequence[object] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        given = kwargs or {}
        for argument in (*args, *given.values()):
            for each in argument if isinstance(argument, list | tuple) else (argument,):
                layer = self._layers.pop(id(each), None)
                if layer is not None:
                    self._uses(layer)
        return func(*args, **given)
