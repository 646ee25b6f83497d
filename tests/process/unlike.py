"""A script whose second rank is on a processor that rounds otherwise: `unlike.py ALGORITHM OPTIMIZER`, under torchrun.

With a third argument, the second rank's script also changes its model by itself.
"""

from __future__ import annotations

import os
import sys

if os.environ.get("RANK") == "1":
    os.environ["ATEN_CPU_CAPABILITY"] = "default"  # no fused multiply-add: before torch is imported

import numpy as np
import torch
from torch.utils.data import TensorDataset

import ownpace


def main() -> None:
    algorithm, kind, *spoils = sys.argv[1:]
    inputs = torch.from_numpy(np.random.default_rng(0).standard_normal((256, 8)).astype(np.float32))
    net = torch.nn.Linear(8, 4)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    if kind == "adam":
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    with ownpace.join(algorithm) as fleet:
        net, optimizer = fleet.wrap(net, optimizer)
        for x, y in fleet.batches(TensorDataset(inputs, inputs[:, :4].argmax(1)), 16, epochs=2):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
            if spoils and fleet.rank == 1:
                with torch.no_grad():
                    net.weight.mul_(1.001)
        # As the loop has left it: what leaving the run does is not needed for it.
        print("weights", [value.hex() for value in net.weight.detach().flatten().tolist()])


if __name__ == "__main__":
    main()
