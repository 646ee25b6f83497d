"""What everything else builds on. Imports nothing else of ownpace.

    contract/   what an algorithm is, what it may ask for, what nodes hand to each other; events; errors
    blocks/     what several algorithms are built of: accumulating, varying batches, barriers, local rounds
    learning/   what engines learn with: flat models, optimizers as functions, sampling, schedules, tasks, seeds
    settings    frozen dataclasses from what users write

Arrows point one way: contract ← {blocks, learning}. An algorithm imports `contract` and `blocks`, never `learning`.
"""
