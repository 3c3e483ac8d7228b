"""The extension module; its functions and classes are documented where C++ binds them (native/bindings)."""

from typing import Any

def __getattr__(name: str) -> Any: ...
