"""`--algorithm auto`: measure briefly, plan, go.

training    of `ownpace train` and `ownpace.train`: measured and planned before the run begins
looking     of `ownpace.join`: an algorithm that looks on while it trains, then goes on as the one it has chosen
joining     `ownpace.join` with that
"""

from ownpace.auto.joining import join
from ownpace.auto.training import AUTO, Chosen, check_out, choose, train

__all__ = ["AUTO", "Chosen", "check_out", "choose", "join", "train"]
