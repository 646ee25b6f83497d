"""One run from its description to its files: what the command line and `ownpace.train` both do.

config        the description of a run, as users give it, with the help of each field (`help`, `fields`)
names         from names to algorithms, tasks and optimizers, and back; `own` finds and makes those of the user's own
config_file   the description as JSON, and read again
learning      how a run learns: what its description says, and for the rest what its task does
place         where a run may be written, so that nothing of the user's is lost
folder        the files of one run, which one process at a time writes (`folder_lock`); `waiting_folder`: of one that is
              about to replace another
event_log     its events on their way to the disk
checkpoints   its checkpoints, and who writes them
resume        which checkpoint a run goes on from, and what may change
resumed_folder  the files of a run that goes on
opened        runs of the past, for reports; `listing` of all there are, `following` of one that is going on, where one
              stands (`standing`), what its JSON files say (`saved`)
hooks         whoever listens to a run while it goes on
recording     what becomes of events and checkpoints as they come
orphaned      what is said of a run whose launcher was killed
execution     the description carried out: `execute`
result        what came out (`history`: how it went), and of several algorithms: `comparison`
calls         what Python programs call: `train`, `compare`, `open_run`; `watching` and `progress` say how far they are
"""

from typing import TYPE_CHECKING

from ownpace.core.contract.event_file import EVENTS
from ownpace.core.late import late_names
from ownpace.run.config import CONFIG, Config

if TYPE_CHECKING:
    from ownpace.run.calls import compare, open_run, train
    from ownpace.run.comparison import Comparison
    from ownpace.run.execution import execute
    from ownpace.run.folder import RunFolder
    from ownpace.run.place import MODEL, SUMMARY
    from ownpace.run.result import Result
else:  # imported when they are used: they need torch, and `--help` does not
    __getattr__ = late_names(
        __name__,
        {
            "MODEL": "ownpace.run.place",
            "SUMMARY": "ownpace.run.place",
            "Comparison": "ownpace.run.comparison",
            "Result": "ownpace.run.result",
            "RunFolder": "ownpace.run.folder",
            "execute": "ownpace.run.execution",
            "compare": "ownpace.run.calls",
            "open_run": "ownpace.run.calls",
            "train": "ownpace.run.calls",
        },
    )

__all__ = [
    "CONFIG",
    "EVENTS",
    "MODEL",
    "SUMMARY",
    "Comparison",
    "Config",
    "Result",
    "RunFolder",
    "compare",
    "execute",
    "open_run",
    "train",
]
