"""What a run's description chooses from by name. Here and not where it is used: naming it must not import torch."""

from __future__ import annotations

from typing import Literal

Sampling = Literal["queue", "iid", "shards"]
Evaluate = Literal["during", "after"]
Precision = Literal["float32", "bfloat16", "float16"]
OnFailure = Literal["continue", "restart", "stop"]
OPTIMIZERS = (
    "sgd", "adam", "adamw", "nadam", "radam", "adamax", "adagrad", "adadelta", "rmsprop", "rprop", "asgd",
)  # fmt: skip
"""Those that treat each number by itself (`core.learning.optimizer.ELEMENTWISE`)."""
