"""What a node is: one process that runs one coroutine of the algorithm and answers what it asks for.

nodes, worker   ProcessNode (a communicator is just that) and ProcessServer; ProcessWorker
context, terms  what a node is given, and what all nodes of a run must know
inbox           what arrives: messages (deliveries), awaited as a whole or by layer (receiving, parts), control
                messages, the word to stop
sums            collectives: starting them, asking whether they are over, reading the result; long_wait: what one that
                lasts may come from
learner         parameters, the updates made to them (unfinished: while layers arrive), what is counted and shown of
                that (late_snapshot)
replica_watch   are replicas still equal? rounding: may processors be why not? alignment: equal again
parameters      what is stepped: a flat vector with our optimizer
user_parameters what is stepped: a user's models and optimizers, one user_pair each; no_trace lets them look ahead,
                flat_steps steps ranges of layers (flat_range) at once, gathering makes sums of their gradients;
                kept_gradient, seen_tensor: does the next backward pass add to them?
task_gradients  gradients of a task, at full speed or at a prescribed pace; computer does the arithmetic, layered_pass
                by layer
loop            a user's own loop, which brings gradients (loop_gradients) at a model_point; batch_source: which samples
                it gets; handed_out: which it still has; overlap: when gradients leave; layer_sender sends them during
                its backward pass; model_state: what the model's state dictionary holds; settings_watch: do all ranks
                step alike?
gpu, finite     time on a GPU; is a gradient finite?
reporter        the run's clock, and what a node tells the hub
optimizer_copy  a user's optimizer, described for a server; optimizer_parts: its state on the way there and back
"""
