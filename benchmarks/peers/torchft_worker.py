"""One replica under torchft: a small perceptron, synchronous, each batch at least 10 ms. Started by `kills`.

torchft_worker.py NUMBER RECORDS LIGHTHOUSE
"""

from __future__ import annotations

import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from work import Records, learn, net


def main() -> None:
    number, folder, lighthouse = sys.argv[1:]
    torch.manual_seed(0)
    model = net()
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def load(state: dict[str, dict[str, object]]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=10)),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        min_replica_size=1,
        timeout=timedelta(seconds=10),
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=lighthouse,
        replica_id=f"replica_{number}",
        hostname="127.0.0.1",
    )
    wrapped = DistributedDataParallel(manager, model)
    optimizer = Optimizer(manager, inner)
    records = Records(folder, number)
    while True:
        optimizer.zero_grad()
        samples = learn(wrapped)
        before = manager.current_step()
        optimizer.step()
        records.write(samples, used=manager.current_step() > before, update=manager.current_step())


if __name__ == "__main__":
    main()
