"""The hub hears all nodes, and leads a run from its first generation to its end. No node waits for it while training.

session                one process's part in a run: connection, children, the hub if it keeps it, signals
hub                    the conversation; keeper runs it, parts is what it is made of, checks whether what is said fits
membership             who comes and goes; departures: who leaves because a signal asks it to
generations            from one to the next; members: who is there; planning: who gives what to whom; late_watch
states                 checkpoints, and snapshots of servers
journal                records and sums; replicas compares them, absences; evaluator scores snapshots
config                 what the hub is given: the run, and what it is to do when machines come and go
"""
