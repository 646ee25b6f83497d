"""Counts the files that one has to open to follow a run, by running it and recording which functions are entered.

Two journeys: `ownpace train` on processes (the launcher and one of its workers), and one `optimizer.step()` of a
training script that uses `ownpace.join`. A file counts when a function written in it is entered; what runs on import
and methods that `dataclass` writes do not count. Prints the files and their number; `make journeys` runs it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "ownpace"
TRAIN = ["train", "--engine", "process", "--fleet", "2,1", "--epochs", "1", "--algorithm", "pace"]
VALUES = {"errors.py", "events.py", "values.py", "settings.py"}
"""Files that hold values and no course of action: nobody needs to open them to follow a run."""

MAX_TRAIN, MAX_STEP = 25, 10


class Recorder:
    """The files of the package in which a function was entered, in this process."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self._codes: set[CodeType] = set()

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        """What Python calls at each call, once it is set as the profiler."""
        code = frame.f_code
        if event == "call" and code not in self._codes and self._counts(frame):
            self._codes.add(code)
            self.enter(str(Path(code.co_filename).resolve().relative_to(SOURCE)))

    def enter(self, file: str) -> None:
        """Take note of a file."""
        self.files.add(file)

    def _counts(self, frame: FrameType) -> bool:
        code = frame.f_code
        ours = code.co_filename.startswith(str(SOURCE))
        return ours and code.co_name != "<module>" and not is_importing(frame)


class FileRecorder(Recorder):
    """One that writes down each file at once, so that it does not matter how the process ends."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        os.register_at_fork(after_in_child=self._start_again)

    def enter(self, file: str) -> None:
        """Take note of a file, in a file named after the process."""
        if file not in self.files:
            super().enter(file)
            with (self._folder / str(os.getpid())).open("a", encoding="utf-8") as written:
                written.write(file + "\n")

    def _start_again(self) -> None:
        # A forked worker inherits what the fork server has seen; its own journey begins here.
        self.files.clear()
        self._codes.clear()


def is_importing(frame: FrameType | None) -> bool:
    """Whether the frame runs because a module of the package is being imported."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(str(SOURCE)):
            # `python -m ownpace` runs a module too, but not to import it.
            return bool(frame.f_globals["__name__"] != "__main__")
        frame = frame.f_back
    return False


def record_this_process(folder: str) -> None:
    """Record from now on, in every thread. Called by the `sitecustomize` that `traced_environment` makes."""
    recorder = FileRecorder(Path(folder))
    threading.setprofile(recorder)
    sys.setprofile(recorder)


@contextmanager
def traced_environment(folder: Path) -> Iterator[dict[str, str]]:
    """An environment in which every Python process, and every process it starts, records into `folder`."""
    with tempfile.TemporaryDirectory() as hook:
        lines = [
            "import sys",
            f"sys.path.append({str(ROOT / 'scripts')!r})",
            "import journeys",
            f"journeys.record_this_process({str(folder)!r})",
        ]
        (Path(hook) / "sitecustomize.py").write_text("\n".join(lines), encoding="utf-8")
        yield environment(hook)


def environment(*more: str) -> dict[str, str]:
    """This process's environment, with the package on the path."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([*more, str(SOURCE.parent)]), "OMP_NUM_THREADS": "1"}


def train_journey() -> set[str]:
    """Files of `ownpace train` on processes: those of the launcher and of the worker that enters most of them."""
    with tempfile.TemporaryDirectory() as folder, traced_environment(Path(folder)) as traced:
        with tempfile.TemporaryDirectory() as out:
            command = [sys.executable, "-m", "ownpace", *TRAIN, "--out", out, "--overwrite"]
            with subprocess.Popen(command, env=traced, stdout=subprocess.DEVNULL) as launcher:
                pass  # leaving the block waits
        if launcher.returncode:
            sys.exit(f"{' '.join(command)} failed with exit code {launcher.returncode}")
        files = {path.name: set(path.read_text("utf-8").split()) for path in Path(folder).iterdir()}
    return files.pop(str(launcher.pid)) | max(files.values(), key=len)


def step_journey(num_ranks: int) -> set[str]:
    """Files of one `optimizer.step()` in a fleet of that size, on rank 0."""
    alone = [sys.executable]
    ranks = [*alone, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "files"
        command = [*(ranks if num_ranks > 1 else alone), __file__, "--steps", str(written)]
        subprocess.run(command, env=environment(), check=True)
        return set(written.read_text("utf-8").split())


def run_steps(written: Path) -> None:
    """A training script; on rank 0 it writes down the files of the one step that enters most of them."""
    import torch

    import ownpace

    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.utils.data.TensorDataset(torch.randn(512, 4), torch.randint(2, (512,)))
    steps: list[set[str]] = []
    with ownpace.join("pace") as fleet:
        model, optimizer = fleet.wrap(model, optimizer)
        for x, y in fleet.batches(data, batch_size=8, epochs=2):
            torch.nn.functional.cross_entropy(model(x), y).backward()
            recorder = Recorder()
            sys.setprofile(recorder)
            optimizer.step()
            sys.setprofile(None)
            optimizer.zero_grad()
            steps.append(recorder.files)
        if fleet.rank == 0:
            # The first steps set things up, and the last ones end the run: neither is what a step usually does.
            # Nor is what happens only now and then, such as a report to the hub: the median step stands for all.
            steady = sorted(steps[len(steps) // 4 : -len(steps) // 4], key=len)
            written.write_text("\n".join(steady[len(steady) // 2]), encoding="utf-8")


def show(title: str, files: Iterable[str], most: int) -> None:
    """Print one journey."""
    ordered = sorted(files)
    values = [file for file in ordered if Path(file).name in VALUES]
    print(f"\n{title}: {len(ordered)} files, {len(ordered) - len(values)} without values; wanted ≤ {most}")
    for file in ordered:
        print(f"    {file}{'   (values)' if file in values else ''}")


def main() -> None:
    """Go on each journey."""
    if sys.argv[1:2] == ["--steps"]:
        run_steps(Path(sys.argv[2]))
        return
    show(f"ownpace {' '.join(TRAIN)}, launcher and one worker", train_journey(), MAX_TRAIN)
    show("optimizer.step(), alone", step_journey(1), MAX_STEP)
    show("optimizer.step(), rank 0 of 2", step_journey(2), MAX_STEP)


if __name__ == "__main__":
    main()
