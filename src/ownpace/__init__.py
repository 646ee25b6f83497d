"""ownpace trains one model on machines of different speed, every machine at its own pace.

How the parts depend on each other; arrows point one way, and siblings do not import each other:

    core ← fleet ← { algorithms, tasks, engines, report } ← { run, drop_in } ← { measuring, planning } ← auto
    ← testing ← { cli, integrations }

An algorithm is one file of coroutines that *ask* (`core.contract.roles`); an engine answers: in virtual time, or on
real processes. Start reading at `algorithms/sync.py`, then `core/contract/roles.py`, then `engines/virtual/nodes.py`.
What a run is, as users describe it, is in `run/config.py`.
"""

from typing import TYPE_CHECKING

from ownpace.core.late import late_names
from ownpace.core.version import __version__ as __version__

if TYPE_CHECKING:
    from ownpace.algorithms import ALGORITHMS, make_algorithm
    from ownpace.auto import join, train
    from ownpace.core.blocks.accumulate import accumulate, accumulate_and_reduce, accumulate_and_step, accumulate_until
    from ownpace.core.blocks.push_pull import pull, push
    from ownpace.core.contract.algorithm import Algorithm
    from ownpace.core.contract.errors import (
        Deadlock,
        DivergenceError,
        InputError,
        Interrupted,
        MachineDied,
        OwnpaceError,
    )
    from ownpace.core.contract.roles import Communicator, Server, Worker
    from ownpace.core.contract.values import Gradient, Parameters
    from ownpace.core.learning.task import Task, TensorSamples
    from ownpace.engines.job import ProgressReport
    from ownpace.fleet import Fleet, Machine, Network, read_fleet
    from ownpace.measuring import Measured, measure, measure_loop
    from ownpace.planning import Plan, plan
    from ownpace.report import Summary
    from ownpace.run import Comparison, Config, Result, compare, execute, open_run
    from ownpace.tasks import TASKS, make_task

_NAMES = {
    "ownpace.algorithms": "ALGORITHMS make_algorithm",
    "ownpace.auto": "join train",
    "ownpace.core.blocks.accumulate": "accumulate accumulate_and_reduce accumulate_and_step accumulate_until",
    "ownpace.core.blocks.push_pull": "pull push",
    "ownpace.core.contract.algorithm": "Algorithm",
    "ownpace.core.contract.errors": "Deadlock DivergenceError InputError Interrupted MachineDied OwnpaceError",
    "ownpace.core.contract.roles": "Communicator Server Worker",
    "ownpace.core.contract.values": "Gradient Parameters",
    "ownpace.core.learning.task": "Task TensorSamples",
    "ownpace.engines.job": "ProgressReport",
    "ownpace.fleet": "Fleet Machine Network read_fleet",
    "ownpace.measuring": "Measured measure measure_loop",
    "ownpace.planning": "Plan plan",
    "ownpace.report": "Summary",
    "ownpace.run": "Comparison Config Result compare execute open_run",
    "ownpace.tasks": "TASKS make_task",
}
"""What users import from here, by module. Each is imported when it is used: torch takes a second to import."""
if not TYPE_CHECKING:  # a type checker sees the imports above, and would allow any name
    __getattr__ = late_names(__name__, {name: module for module, names in _NAMES.items() for name in names.split()})

__all__ = [
    "ALGORITHMS",
    "TASKS",
    "Algorithm",
    "Communicator",
    "Comparison",
    "Config",
    "Deadlock",
    "DivergenceError",
    "Fleet",
    "Gradient",
    "InputError",
    "Interrupted",
    "Machine",
    "MachineDied",
    "Measured",
    "Network",
    "OwnpaceError",
    "Parameters",
    "Plan",
    "ProgressReport",
    "Result",
    "Server",
    "Summary",
    "Task",
    "TensorSamples",
    "Worker",
    "accumulate",
    "accumulate_and_reduce",
    "accumulate_and_step",
    "accumulate_until",
    "compare",
    "execute",
    "join",
    "make_algorithm",
    "make_task",
    "measure",
    "measure_loop",
    "open_run",
    "plan",
    "pull",
    "push",
    "read_fleet",
    "train",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
