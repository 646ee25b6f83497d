"""Which algorithm to take on one's machines: by simulated speed, and by learning with real gradients.

candidates    who takes part, and who does not and why
timing        how fast an algorithm is, from the events of a run
trial         one run, given up as soon as enough is known of it or the time is up; `cost`: what a sample takes there
pool          where trials are carried out; `process` is one of those processes
driving       searches side by side
halving       the best learning rate, by successive halving over octaves
study         what is asked of one algorithm
noise         the gradient noise scale
budget        how long runs may be, and how many: as thorough as the time allows
learning      all searches of a plan in order
what_if       other fleets, `elsewhere` what is asked about them
planner       all of it in order: `plan`, stage after stage (`stage_driver`), each with its `deadlines` and `progress`
ranking       from what is known to a plan
results       what a plan says, `words` in words, `command` as a command
by_speed      a choice by speed alone, `in_scripts` for a script of the user's own
"""

from ownpace.planning.in_scripts import IN_SCRIPTS, ChosenBySpeed, choose_by_speed
from ownpace.planning.noise import NoiseScale, noise_scale
from ownpace.planning.planner import plan
from ownpace.planning.progress import PlanProgress
from ownpace.planning.results import Choice, Plan, Ranked, WhatIf

__all__ = [
    "IN_SCRIPTS",
    "Choice",
    "ChosenBySpeed",
    "NoiseScale",
    "Plan",
    "PlanProgress",
    "Ranked",
    "WhatIf",
    "choose_by_speed",
    "noise_scale",
    "plan",
]
