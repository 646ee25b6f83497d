"""What everything else builds on. Imports nothing else of ownpace.

    contract/     what an algorithm is, what it may ask for, what nodes hand to each other; events; errors
    blocks/       what several algorithms are built of: accumulating, varying batches, barriers, local rounds
    learning/     what engines learn with: flat models, optimizers as functions, sampling, schedules, tasks, seeds
    settings      frozen dataclasses from what users write; choices: what some fields choose from, by name
    own_code      code of the user's own, in a file: `my.py:Spirals`
    whole_file    files that are there whole, or not at all; line_file: one that grows by whole lines
    bounded_read  reading what users name; printable: showing what it says
    late          what is imported only when it is used; version

Arrows point one way: contract ← {blocks, learning}. An algorithm imports `contract` and `blocks`, never `learning`.
"""
