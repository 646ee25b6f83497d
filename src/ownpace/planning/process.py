"""A process that carries out trials: one line of JSON in, one line of JSON out."""

from __future__ import annotations

import json
import os
import sys
from functools import lru_cache

import torch

from ownpace.core.contract.errors import InputError
from ownpace.planning.trial import Trial, try_out
from ownpace.run import Config


def main() -> None:
    """Answer until nobody asks any more."""
    torch.set_num_threads(1)
    # What a user's task prints must not stand between the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        print(_answer(line), file=answers, flush=True)


def _answer(line: str) -> str:
    request = json.loads(line)
    base = _load(request["base"])
    deadline = request.pop("deadline")
    trial = Trial(base, **{name: value for name, value in request.items() if name != "base"})
    try:
        return json.dumps(try_out(trial, deadline).to_json())
    except InputError as error:
        return json.dumps({"bad_input": str(error)})


@lru_cache(maxsize=32)
def _load(path: str) -> Config:
    return Config.load(path)


if __name__ == "__main__":
    main()
