"""Whoever takes scalars: TensorBoard and Weights & Biases, where they are installed."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from ownpace.core.contract.errors import InputError
from ownpace.report.exports.scalars import Scalar


class ScalarLogger(Protocol):
    """Takes scalars."""

    def log(self, scalar: Scalar) -> None:
        """Take one."""

    def close(self) -> None:
        """All have come: write what waits."""


def import_tensorboard() -> Any:
    """TensorBoard's writers.

    Raises:
        InputError: TensorBoard is not installed.
    """
    try:
        return importlib.import_module("torch.utils.tensorboard")
    except ImportError:
        raise InputError(
            "scalars for TensorBoard need its package; install it: pip install 'ownpace[tensorboard]'"
        ) from None


class TensorBoardLogger:
    """Writes scalars into a folder that TensorBoard shows, over samples."""

    def __init__(self, folder: Path, began_at: float) -> None:
        """`began_at` is when the run began, in seconds since 1970: TensorBoard shows times relative to that.

        Raises:
            InputError: TensorBoard is not installed.
        """
        self._began_at = began_at
        self._writer: Any = import_tensorboard().SummaryWriter(str(folder))

    def log(self, scalar: Scalar) -> None:
        """Take one."""
        self._writer.add_scalar(scalar.name, scalar.value, scalar.samples, walltime=self._began_at + scalar.t)

    def close(self) -> None:
        """Write what waits."""
        self._writer.close()


class WandbLogger:
    """Sends scalars to Weights & Biases as they come."""

    def __init__(self, project: str, name: str | None, settings: Mapping[str, object]) -> None:
        """Begin a run there.

        Raises:
            InputError: W&B is not installed, or cannot begin a run.
        """
        try:
            wandb: Any = importlib.import_module("wandb")
        except ImportError:
            raise InputError("--wandb needs its package; install it: pip install 'ownpace[wandb]'") from None
        try:
            self._run: Any = wandb.init(project=project, name=name, config=dict(settings))
        except Exception as error:  # whatever it raises: no login, no network, a name that is none
            raise InputError(f"W&B cannot begin a run in project '{project}': {str(error)[:300]}") from None
        self._run.define_metric("samples")
        self._run.define_metric("*", step_metric="samples")

    def log(self, scalar: Scalar) -> None:
        """Take one."""
        self._run.log({scalar.name: scalar.value, "samples": scalar.samples, "seconds": scalar.t})

    def close(self) -> None:
        """Send what waits."""
        self._run.finish()
