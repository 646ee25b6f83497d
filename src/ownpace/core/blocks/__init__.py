"""Building blocks: what several algorithms share, written with nothing but what the contract offers.

accumulate     a batch in micro-batches, summed while it is computed, or until a sum has arrived
push_pull      gradients to the parameter servers, parameters back
paces          how fast each worker computes, learnt from sums
division       a batch divided among workers by their paces
micro_batch    how large micro-batches are
lr_rules       the learning rate of an update whose batch varies
quota          how many samples each worker contributes to an update
varying_batch  the last three together: the settings and the helper of abs, acco and pace
group_barrier  a server gathers the gradients of a whole group
local_round    steps that a worker takes alone, and the difference they make
outer_step     the step that all take together with those differences
round_limit    how long a worker goes on alone while a sum is under way; waiting: whether it waits at once
"""
