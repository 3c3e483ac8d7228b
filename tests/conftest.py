"""What holds for all tests."""

from __future__ import annotations

import signal

from hypothesis import settings

# Started in the background of a script, a process inherits that Ctrl-C is ignored; the tests of Ctrl-C need it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The suite says the same of a commit wherever it runs; `pytest --hypothesis-profile=default` looks for new examples.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
