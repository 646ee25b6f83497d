"""Where a user's model is."""

from __future__ import annotations

from torch import Tensor

from ownpace.engines.process.node.user_parameters import UserParameters


class ModelPoint:
    """Where a user's model is: at its own parameters, or at a point that the algorithm wants a gradient at."""

    def __init__(self, user: UserParameters) -> None:
        self._user = user
        self.own: Tensor | None = None
        """Its own parameters, while the model is elsewhere."""

    @property
    def is_elsewhere(self) -> bool:
        """Whether the model is at another point than its own parameters."""
        return self.own is not None

    def visit(self, values: Tensor) -> None:
        """Go to a point."""
        self.own = self._user.snapshot()
        self._user.overwrite(values)

    def leave(self) -> None:
        """Go back to the model's own parameters."""
        if self.own is not None:
            self._user.overwrite(self.own)
            self.own = None
