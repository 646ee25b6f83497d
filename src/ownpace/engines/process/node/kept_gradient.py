"""What becomes of a gradient that is still there when a script takes its next batch."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.utils.hooks import RemovableHandle

from ownpace.engines.process.node.seen_tensor import SeenTensor


class KeptGradient:
    """Tells whether the next backward pass adds to it, or begins anew: `zero_grad` may come at the top of a loop.

    Only the moment between the two shows that. After the pass, both look alike.
    """

    def __init__(self) -> None:
        self._hook: RemovableHandle | None = None

    def watch(self, parameter: Tensor | None, thrown_away: Callable[[], None] | None) -> None:
        """Call this when a backward pass comes to the parameter and finds its gradient gone, or zero.

        It replaces what was watched before; None: nothing is.
        """
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        if parameter is None or parameter.grad is None or thrown_away is None:
            return
        kept = SeenTensor(parameter.grad)

        def look(_: Tensor) -> None:
            self.watch(None, None)
            now = parameter.grad
            # Looking into it would wait for a GPU: only if something was written to it.
            if now is None or not (kept.is_untouched(now) or bool(now.any())):
                thrown_away()

        self._hook = parameter.register_hook(look)
