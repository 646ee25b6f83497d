"""Lightning's idea of devices and hosts, corrected by what torchrun has started."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ownpace.core.contract.errors import InputError
from ownpace.engines.process.meet.environment import Environment

if TYPE_CHECKING:
    from lightning.pytorch.strategies import DDPStrategy as _Base
else:
    _Base = object  # the mixin stands before a strategy of Lightning's or of Fabric's


class AsTorchrunSays(_Base):
    """The processes are those that torchrun started; without it, this one alone."""

    @property
    def parallel_devices(self) -> list[torch.device] | None:
        """One device for each process on this host."""
        devices: list[torch.device] | None = self._parallel_devices
        return devices

    @parallel_devices.setter
    def parallel_devices(self, devices: list[torch.device] | None) -> None:
        # Lightning's default for CPUs is one process.
        if devices and len(devices) == 1 and devices[0].type == "cpu":
            devices = devices * started().local_world_size
        self._parallel_devices = devices

    @property
    def num_nodes(self) -> int:
        """How many hosts there are."""
        return started().world_size // started().local_world_size

    @num_nodes.setter
    def num_nodes(self, num_nodes: int) -> None:
        """Torchrun knows."""

    def _configure_launcher(self) -> None:
        wanted, there = self.num_processes * self.num_nodes, started().world_size
        if wanted != there:
            raise InputError(
                f"{wanted} devices are to be used, but there are {there} processes; "
                f"start it with torchrun --nproc-per-node {wanted}, or say devices={there}"
            )
        self._launcher = None  # all processes have been started


def started() -> Environment:
    """What torchrun says."""
    return Environment.read() or Environment.alone()
