"""What holds for all tests."""

from __future__ import annotations

import re
import signal

import pytest
from hypothesis import settings

# Started in the background of a script, a process inherits that Ctrl-C is ignored; the tests of Ctrl-C need it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The suite says the same of a commit wherever it runs; `pytest --hypothesis-profile=default` looks for new examples.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave slow tests and those of the page and of vLLM out unless the markers on the command line name them."""
    unasked = {"slow", "page", "vllm"} - set(re.findall(r"\w+", config.getoption("markexpr")))
    left_out = [item for item in items if any(map(item.get_closest_marker, unasked))]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in set(left_out)]
