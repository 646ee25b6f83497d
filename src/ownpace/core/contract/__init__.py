"""The contract between algorithms and engines.

roles       what an algorithm may ask for: Worker, Server, Communicator, and what they have in common
algorithm   the base class of every algorithm
values      what nodes hold and hand to each other: gradients, parameters, messages, addresses
events      what happened in a run, as one stream of typed records: the only thing that reports read
event_file  these records, read from files one after the other
target      when a run has reached its target
errors      everything that ownpace raises on purpose
"""
