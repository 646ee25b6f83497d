"""Fleets: machines of different speed, their links, and what happens to them."""

from ownpace.fleet.model import Fleet, Machine, PlannedFault, Slowdown, WorkerMachine
from ownpace.fleet.network import Between, Network, ServerMachine
from ownpace.fleet.presets import PRESETS, paces
from ownpace.fleet.read import fleet_from, full_speed, read_fleet, read_toml

__all__ = [
    "PRESETS",
    "Between",
    "Fleet",
    "Machine",
    "Network",
    "PlannedFault",
    "ServerMachine",
    "Slowdown",
    "WorkerMachine",
    "fleet_from",
    "full_speed",
    "paces",
    "read_fleet",
    "read_toml",
]
