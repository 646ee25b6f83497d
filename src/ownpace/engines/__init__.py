"""Engines answer what algorithms ask: `virtual` from a simulated clock, `process` on real processes.

virtual/, process/   the two of them, which do not know each other; what follows here is for both
job                  what an engine is given, and what it hands back
roster               the nodes of a run, and the groups they form
progress             how far a run is, as far as one node knows, and when to stop
ledger               the run in numbers: sums of updates, evaluations, the target, the last record
learning             gradients and evaluations of a task's model; replayed: as recorded CUDA graphs
processor            how long a worker takes, as the fleet prescribes it
sum_order            in which order the layers of a gradient are summed; layer_times: when each is ready and needed
resuming             what a checkpoint and the run that goes on from it must have in common; generators: torch's own
threads, memory      what a process takes of its machine
"""

from ownpace.engines.job import Job, Outcome
from ownpace.engines.process.meet.agent_watch import started_by
from ownpace.engines.process.run.start import check_real, is_main_process, is_next_in_line, num_ranks, run_process
from ownpace.engines.virtual.run import run_virtual

ENGINES = {"virtual": run_virtual, "process": run_process}
"""Name → the function that runs a job."""

__all__ = [
    "ENGINES",
    "Job",
    "Outcome",
    "check_real",
    "is_main_process",
    "is_next_in_line",
    "num_ranks",
    "run_process",
    "run_virtual",
    "started_by",
]
