"""How the processes of a run talk. Knows nothing of algorithms.

mailbox        messages over ZeroMQ, encrypted; RunKey, the secret of a run
wire           how a message looks: header, numbers, raw tensor bytes
control        what nodes and the hub say about the run itself, with the sequence of a whole run
shared_memory  large tensors between processes of one host
channels       the connections of a group, over gloo or NCCL
collectives    sums of gradients over them, in buckets that can leave during the backward pass
header         what travels with a sum: samples, versions, notes, the wish to stop
store          asking the store that all processes share, without being deaf meanwhile
sealed_store   a store whose values only the ranks of this run can have written
counters       how far the queue of samples has been taken
private_files  files by which processes of one user on one host meet
"""
