"""All that a node imports, for the server that nodes are forked from, where none of them needs a GPU.

Torch imports hundreds of modules only when the first optimizer is made, which takes more than a second of computing. In
each node it would take that long again, and while a server is started again, the whole fleet waits.
"""

from __future__ import annotations

import torch

from ownpace.engines.process.run import node_main

__all__ = ["node_main"]

torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.0)
