"""What a node is: one process that runs one coroutine of the algorithm and answers what it asks for.

nodes           ProcessNode (a communicator is just that), ProcessServer, ProcessWorker
context, terms  what a node is given, and what all nodes of a run must know
inbox           what arrives: messages (deliveries), control messages, the word to stop
sums            collectives: starting them, asking whether they are over, reading the result
learner         parameters, the updates made to them, what is counted and shown of that (late_snapshot)
parameters      what is stepped: a flat vector with our optimizer
user_parameters what is stepped: a user's models and optimizers, one user_pair each; no_trace lets them look ahead
task_gradients  gradients of a task, at full speed or at a prescribed pace; computer does the arithmetic
loop            a user's own loop, which brings gradients (loop_gradients) at a model_point; layer_sender sends them
                during its backward pass
gpu, finite     time on a GPU; is a gradient finite?
reporter        the run's clock, and what a node tells the hub
optimizer_copy  a user's optimizer, described for a server
"""
