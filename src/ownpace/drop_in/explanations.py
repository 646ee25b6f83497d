"""Errors of torch's that a fleet is the reason for, in words of ours."""

from __future__ import annotations

from ownpace.core.contract.errors import InputError


def explain(error: BaseException | None) -> InputError | None:
    """Why a script failed, if torch could not know; None: its own words say it best."""
    if isinstance(error, RuntimeError) and "modified by an inplace operation" in str(error):
        return InputError(
            "a backward pass went through a graph that was made before an optimizer.step(), and the parameters have "
            "changed since; begin a batch's forward pass after the step of the batch before it (the data may be "
            "prefetched, its loss may not)"
        )
    return None
