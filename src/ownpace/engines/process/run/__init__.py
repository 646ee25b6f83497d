"""How a run comes about, and how it ends.

start                  the engine's entry: launcher, or one of torchrun's ranks
launch, torchrun       the two ways; `ownpace.join` is the third
session                what they share: connection, children, hub, signals, closed in the opposite order
rendezvous             where processes find each other, and the run's key
presence               that every rank is there, from its joining on; roll compares where they are
connection             one node's store, mailbox and clock, and its first words
node_main              a node's whole life
supervisor             children: starting them, noticing their death, leaving none behind
hub                    leads the conversation; journal writes the records, evaluator scores snapshots,
complaints finds the cause among what many nodes report
"""
