"""How a run comes about, how it goes on when nodes come and go, and how it ends.

start                  the engine's entry: launcher, or one of torchrun's ranks
launch, torchrun       the two ways; opening and joining are the third: `ownpace.join`
session                what they share: connection, children, hub, signals (interrupts), closed in the opposite order
environment            what torchrun and the user say by variables
rendezvous             where processes find each other; incarnation: which start of the run this is; key_exchange
connection             one node's store, mailbox and clock, and its first words
supervisor             children: starting them, noticing their death, leaving none behind; preloaded, restarts

presence               that every rank of a script is there, from its joining on, and torchrun (agent_watch):
  rank_listener          what the others say            rank_lines    on which lines
  rank_place             how far this rank has come     attendance    who is there, on rank 0; roll compares
  past, readmission      ranks that are started again

hub                    leads the conversation with all nodes; hub_keeper runs it, hub_parts is what it is made of
  hub_checks             whether what nodes say fits the run
  membership             who comes and goes; silence: who does not answer; complaints: the cause among consequences
  generations            from one to the next; members: who is there; planning: who gives what to whom; late_watch
  hub_states             checkpoints, and snapshots of servers, put together by run_state
  journal                records and sums; replicas, absences; evaluator scores snapshots; elasticity: what is asked for

node_main              a node's process from its first word to its last
  life                   what all nodes do from generation to generation; exchange: what they give each other
  helper_life            of a server or communicator
  worker_life            of a worker; worker_data: its samples; worker_parts
  loop_life              of a rank of a user's script; loop_parts, loop_data, user_terms, sharing
"""
