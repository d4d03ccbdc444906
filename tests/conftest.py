"""Hypothesis tries the same examples on every run, so that the suite says the same of one commit twice.

`HYPOTHESIS_PROFILE=explore pytest` tries others; GRADFIX_EXAMPLES=10 tries ten times as many in test_properties.py.
"""

import os

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True)
settings.register_profile("explore", derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
