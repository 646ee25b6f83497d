"""What the nodes of a run must know of a user's models and optimizers."""

from __future__ import annotations

from torch import nn

from ownpace.core.contract import events
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import InputError
from ownpace.engines.process.node.optimizer_copy import OptimizerCopy
from ownpace.engines.process.node.terms import RunTerms
from ownpace.engines.process.node.user_parameters import UserParameters


def terms_of(
    algorithm: Algorithm, num_workers: int, num_servers: int, user: UserParameters, *, detail: bool
) -> RunTerms:
    """What every node of the run must know."""
    optimizer = user.pairs[0].optimizer
    copy = OptimizerCopy.of(optimizer, user.pairs[0].parameters)
    if num_servers:
        if len(user.pairs) > 1:
            raise InputError(
                f"{len(user.pairs)} models, but parameter servers have one optimizer; use an algorithm without "
                "servers, such as pace"
            )
        copy.check(optimizer)
    return RunTerms(
        algorithm=algorithm,
        workers=tuple(f"worker-{rank}" for rank in range(num_workers)),
        num_servers=num_servers,
        layers=user.layout.layers,
        dtype=user.values.dtype,
        optimizer=copy,
        detail=detail,
        num_models=len(user.pairs),
    )


def header_of(terms: RunTerms, model: nn.Module, user: UserParameters, seed: int, batch_size: int) -> events.Run:
    """The record that a run begins with."""
    return events.Run(
        algorithm=type(terms.algorithm).__name__,
        engine="process",
        task="",
        model=type(model).__name__,
        seed=seed,
        batch_size=batch_size,
        micro_batch=batch_size,
        num_parameters=user.layout.size,
        parameter_bytes=user.values.nbytes,
        samples=None,
        target=None,
        groups=terms.roster().names(),
    )


def user_words(user: UserParameters) -> dict[str, object]:
    """What must be the same on all ranks of what a user gave to `fleet.wrap`, and is not in the terms of the run."""
    clip_norms = [pair.clip_norm for pair in user.pairs]
    words: dict[str, object] = {"clip_norm": clip_norms[0] if len(clip_norms) == 1 else clip_norms}
    for number, pair in enumerate(user.pairs[1:], 2):
        words[f"optimizer {number}"] = OptimizerCopy.of(pair.optimizer, pair.parameters).words
    return words
