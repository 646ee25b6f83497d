"""The engine of real processes: torch.distributed or shared memory between workers, ZeroMQ to servers.

Folders, each of which knows only those above it:

    talk/       how processes talk: messages on the wire, mailboxes, shared memory, collectives, control messages
    node/       what a node is: it answers what an algorithm asks for
    meet/       how processes find each other, start others, and notice that one is gone
    presence/   that every rank of a user's script is there
    hub/        who hears all nodes, and leads the run
    lives/      how nodes live from generation to generation
    run/        how a run comes about: by a launcher, by torchrun, from a script

One run, one process per node:

    run.start          which way it was started
      run.launch         one machine: all nodes are children       run.torchrun   one rank of several
      drop_in            a user's own loop, under torchrun or alone
        hub.session        the same for all three: connection, children, hub, signals in one place
          hub.hub            hears all nodes; leads the conversation drawn in talk.control
          run.node_main      what a node's process does from its first word to its last
            lives.life         its generations
              node.nodes, node.worker   ProcessNode, ProcessServer, ProcessWorker: what `me` is
                node.inbox         messages       node.sums    collectives     node.learner  parameters and updates
                node.task_gradients, node.loop    where a worker's gradients come from

A run is a sequence of generations. Within one, membership is fixed, and messages of other generations are not heard.
The next begins when a machine joins or leaves, and at a checkpoint. Every node runs its coroutine from the beginning
to the end: once in each generation of `ownpace train`, once in each `fleet.batches` of a script.
"""
