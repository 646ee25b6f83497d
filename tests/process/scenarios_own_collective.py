"""A script that waits for the other ranks on its own, in its loop."""

from __future__ import annotations

import datetime
import json
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from tests.process.small_net import RANK, Numbers, make_net, mean_loss, sgd

import ownpace
from ownpace.engines.process.node import long_wait


def main() -> None:
    torch.set_num_threads(1)
    long_wait.LONG_S = 1.0
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=10))
    net = make_net()
    optimizer = sgd(net)
    error = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with ownpace.join("sync", quiet=True) as fleet:
                fleet.wrap(net, optimizer)
                for number, (x, y, _) in enumerate(fleet.batches(Numbers(64), 8, sampling="shards")):
                    if RANK == 0 and number == 2:
                        dist.barrier()
                    mean_loss(net, x, y).backward()
                    optimizer.step()
                    optimizer.zero_grad()
        except Exception as raised:
            error = str(raised)
    told = {"warned": [str(one.message) for one in caught], "error": error}
    Path(sys.argv[2], f"{RANK}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
