"""Measuring: how fast machines are with a model, and what is between them, as a fleet file.

probe       what every worker does meanwhile: an algorithm like any other, on processes
links       its part about sums and messages
fit         from times to what a fleet file can say
measured    what was found, as figures and as a fleet
words       the same in words and as a table
measure     `ownpace.measure`: with a task
"""

from ownpace.measuring.measure import measure, measure_config
from ownpace.measuring.measured import Measured

__all__ = ["Measured", "measure", "measure_config"]
