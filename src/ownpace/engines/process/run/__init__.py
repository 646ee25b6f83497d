"""How a run comes about on real processes.

start                  the engine's entry: launcher, or one of torchrun's ranks
launch, torchrun       the two ways; opening and joining are the third: `ownpace.join`
node_main              a node's process from its first word to its last; preloaded: what its children are forked with
"""
