"""How processes find each other, what they start, and how they notice that something is wrong.

environment            what torchrun and the user say by variables
rendezvous             where processes find each other; incarnation: which start of the run this is; key_exchange
connection             one node's store, mailbox and clock, and its first words
supervisor             children: starting them, noticing their death, leaving none behind; restarts: which, and when;
                       hand_over: what they are given
agent_watch            torchrun's agent, whom no rank outlives
interrupts, log_file   Ctrl-C and SIGTERM; what a process writes for people to read
silence, complaints    who does not answer; the cause among what many nodes report
run_state              the state of a run between two generations, as plain data
"""
