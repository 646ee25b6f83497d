"""Fleets: machines of different speed, their links, and what happens to them.

model     machines, slow-downs and faults, as frozen dataclasses
network   links and sites
presets   fleets by name
read      fleets from what users write; write: as the file that is read
"""

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
