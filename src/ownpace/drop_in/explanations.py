"""Errors of torch's that a fleet is the reason for, in words of ours."""

from __future__ import annotations

from ownpace.core.contract.errors import InputError


def explain(error: BaseException | None) -> InputError | None:
    """Why a script failed, if torch could not know; None: its own words say it best."""
    if isinstance(error, RuntimeError) and "modified by an inplace operation" in str(error):
        return InputError(
            "a backward pass went through a graph from before the latest batch was taken or the latest step was made; "
            "begin a batch's forward pass after the step of the batch before it, take the next one after its own, and "
            "detach what is kept from batch to batch (a hidden state)"
        )
    if isinstance(error, StopIteration):
        return InputError(
            "next() was called on a loop over fleet.batches that has ended: its data has, or another rank has left it; "
            "write it as a `for` loop, with updates=… or samples=… where it has to end"
        )
    return None
