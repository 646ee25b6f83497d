"""The engine of virtual time: SimPy's clock, models of compute, network and faults, real gradients or none.

    run           one run: generation after generation, from the first event to the last
    faults        what happens to machines, and when the others notice
    snapshots     what is kept of servers elsewhere
    border        between two generations: the run's state, out of the nodes
    generation    one generation: nodes out of the run's state, and their coroutines
    state         what a run is between two generations, as plain data
    monitor       hears of every update: sums, evaluations, progress reports, and the end of training
    worker        a worker: a node with a machine, data and parameters
    nodes         what all nodes answer when an algorithm asks; servers and communicators
    learner       the learning half of workers and servers
    by_layer      layers that travel on their own: gradients as they are computed, parameters as they arrive
    collectives   all-reduce, reduce and broadcast, from the first member that joins to the last that hears
    layered_sum   sums of layers while others are still being computed
    awaitables    what nodes hand out: gradients, batches, messages and sums under way
    simulation    what all nodes share: clock, latency, model, data
    unjoined      gradients whose layers are not one vector yet
    replica       parameters with their optimizer state; workers in lock-step share their steps
    transport     what a transfer costs, and what links do to each other; ring: an all-reduce across sites
    accounts      whose samples are in the parameters
    clock         SimPy's clock, with a shortcut for what happens millions of times

Each imports only from those below it. The prescription of a machine's pace, the roster, progress and the ledger are in
`engines/`, for both engines.
"""
