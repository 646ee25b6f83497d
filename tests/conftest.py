"""What all tests share."""

from __future__ import annotations

import signal

import pytest
import torch
from hypothesis import HealthCheck, settings

# The plain models compare; their asserts shall say what differed, as those of tests do.
pytest.register_assert_rewrite("tests.conformance.plain")

# Tests run side by side; a second thread in each would only fight over the same cores.
torch.set_num_threads(1)

# A shell lets what it starts in the background ignore Ctrl-C, and so would all that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Neither a deadline nor a slow draw is a failure: the machine may be busy with something else.
settings.register_profile("ownpace", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ownpace")
