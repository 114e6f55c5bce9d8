"""Settings for all tests: hypothesis without time limits and with the same examples on every machine."""

import hypothesis

hypothesis.settings.register_profile("sim2metal", deadline=None, max_examples=50, derandomize=True)
hypothesis.settings.load_profile("sim2metal")
