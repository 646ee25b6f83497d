"""One peer under hivemind. Started by kills.py as `hivemind_worker.py NUMBER RECORDS PEER`.

PEER is the address of a peer that is there already, or `first`; each prints its own.
"""

from __future__ import annotations

import sys

import hivemind
import torch
from work import BATCH, WORKERS, Records, learn, net


def main() -> None:
    number, folder, peer = sys.argv[1:]
    torch.manual_seed(0)
    model = net()
    dht = hivemind.DHT(
        host_maddrs=["/ip4/127.0.0.1/tcp/0"], initial_peers=[] if peer == "first" else [peer], start=True
    )
    print(dht.get_visible_maddrs()[0], flush=True)
    # An update is of four batches of each, so that hivemind's own seconds for one do not hide everything else.
    optimizer = hivemind.Optimizer(
        dht=dht,
        run_id="kills",
        batch_size_per_step=BATCH,
        target_batch_size=4 * WORKERS * BATCH,
        params=model.parameters(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
        matchmaking_time=1.0,
        averaging_timeout=10.0,
    )
    records = Records(folder, number)
    while True:
        before = optimizer.local_epoch
        samples = learn(model)
        optimizer.step()
        optimizer.zero_grad()
        records.write(samples, used=None, update=optimizer.local_epoch)
        if optimizer.local_epoch > before:
            records.flush()


if __name__ == "__main__":
    main()
