"""What holds for all tests."""

from __future__ import annotations

import signal

import pytest
from hypothesis import settings

# Started in the background of a script, a process inherits that Ctrl-C is ignored; the tests of Ctrl-C need it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The suite says the same of a commit wherever it runs; `pytest --hypothesis-profile=default` looks for new examples.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave slow tests out unless the markers on the command line name them; an option -m of its own adds to that."""
    if "slow" in config.getoption("markexpr"):
        return
    slow = [item for item in items if "slow" in item.keywords]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if "slow" not in item.keywords]
