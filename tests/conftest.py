"""Settings for every test: hypothesis repeats the same examples each time, unless HYPOTHESIS_PROFILE=explore."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile("fixed", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))
