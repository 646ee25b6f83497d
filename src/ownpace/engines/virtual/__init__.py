"""The engine of virtual time: SimPy's clock, models of compute, network and faults, real gradients or none.

    run           one run: generation after generation, from the first event to the last
    faults        what happens to machines, and when the others notice
    snapshots     what is kept of servers elsewhere
    border        between two generations: the run's state, out of the nodes
    generation    one generation: nodes out of the run's state, and their coroutines
    state         what a run is between two generations, as plain data
    monitor       hears of every update: sums, evaluations, progress reports, and the end of training
    nodes         workers, servers and communicators: they answer what an algorithm asks for
    learner       the learning half of workers and servers
    collectives   all-reduce, reduce and broadcast, from the first member that joins to the last that hears
    awaitables    what nodes hand out: gradients, batches, messages and sums under way
    simulation    what all nodes share: clock, latency, model, data
    replica       parameters with their optimizer state; workers in lock-step share their steps
    transport     what a transfer costs, and what links do to each other
    accounts      whose samples are in the parameters
    clock         SimPy's clock, with a shortcut for what happens millions of times

Each imports only from those below it. The prescription of a machine's pace, the roster, progress and the ledger are in
`engines/`, for both engines.
"""
