"""Measuring: how fast machines are with a model, and what is between them, as a fleet file.

probe       what every worker does meanwhile: an algorithm like any other, on processes
links       its part about sums and messages
fit         from times to what a fleet file can say
measured    what was found, as figures and as a fleet
words       the same in words and as a table
measure     `ownpace.measure`: with a task
script      `ownpace.measure_loop`: with a script's own model
"""

from ownpace.measuring.measure import measure, measure_config
from ownpace.measuring.measured import Measured, check_free
from ownpace.measuring.script import measure_loop

__all__ = ["Measured", "check_free", "measure", "measure_config", "measure_loop"]
