"""How the processes of a run talk. Knows nothing of algorithms.

mailbox        messages over ZeroMQ, encrypted; line: the way to one other node; run_key: the secret of a run
wire           how a message looks: header, numbers, raw tensor bytes; wire_header: what is checked in it first
control        what nodes and the hub say about the run, with the sequence of a whole one; control_record: as JSON
regrouping     the same from one generation to the next; states: what travels then
rank_control   what the ranks of a script say to each other; replica_control: what workers say of their replicas
shared_memory  large tensors between processes of one host; spare_memory: used again; given_memory: whole states
shared_sums    sums on one host, through memory (shared_slots, or a GPU's: gpu_slots) that members give each other
               (shared_meeting) and wait for (futex)
links          bandwidths that a fleet file prescribes
channels       the connections of a group, over gloo or NCCL; forks: they must leave them alone
collectives    sums of gradients over them, in buckets that can leave during the backward pass
header         what travels with a sum: samples, versions, notes, the wish to stop
store          asking the store that all processes share, without being deaf meanwhile
sealed_store   a store whose values only the ranks of this run can have written
counters       how far the queue of samples has been taken
private_files  files by which processes of one user on one host meet
"""
