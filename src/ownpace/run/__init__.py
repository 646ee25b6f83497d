"""One run from its description to its files: what the command line and `ownpace.train` both do.

config        the description of a run, as users give it, with the help of each field (`help`, `fields`)
names         from names to algorithms, tasks and optimizers, and back
config_file   the description as JSON, and read again
place         where a run may be written, so that nothing of the user's is lost
folder        the files of one run
event_log     its events on their way to the disk
checkpoints   its checkpoints, and who writes them
resume        which checkpoint a run goes on from, and what may change
resumed_folder  the files of a run that goes on
opened        runs of the past, for reports; `listing` of all there are, `following` of one that is going on
hooks         whoever listens to a run while it goes on
recording     what becomes of events and checkpoints as they come
execution     the description carried out: `execute`, and `train` in one call
"""

from typing import TYPE_CHECKING

from ownpace.core.contract.event_file import EVENTS
from ownpace.core.late import late_names
from ownpace.run.config import CONFIG, Config

if TYPE_CHECKING:
    from ownpace.run.execution import execute, train
    from ownpace.run.folder import RunFolder
    from ownpace.run.place import MODEL, SUMMARY
    from ownpace.run.recording import Result
else:  # imported when they are used: they need torch, and `--help` does not
    __getattr__ = late_names(
        __name__,
        {
            "MODEL": "ownpace.run.place",
            "SUMMARY": "ownpace.run.place",
            "Result": "ownpace.run.recording",
            "RunFolder": "ownpace.run.folder",
            "execute": "ownpace.run.execution",
            "train": "ownpace.run.execution",
        },
    )

__all__ = ["CONFIG", "EVENTS", "MODEL", "SUMMARY", "Config", "Result", "RunFolder", "execute", "train"]
