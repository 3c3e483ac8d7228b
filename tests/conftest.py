"""What holds for all tests."""

from __future__ import annotations

import signal

# Started in the background of a script, a process inherits that Ctrl-C is ignored; the tests of Ctrl-C need it.
signal.signal(signal.SIGINT, signal.default_int_handler)
