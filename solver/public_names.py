"""A package's public names, each loaded when it is first used (PEP 562): importing the package costs nothing.

Their modules are stated once, by the package's imports for type checkers: ``from home import name`` under ``if
TYPE_CHECKING:``, or ``from home import name as public``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any


def lazily(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__getattr__`` and the ``__dir__`` of ``package``. A name is loaded once, and from then on an attribute of
    the package. Raises ``AttributeError`` for a name that is not public."""
    module = sys.modules[package]

    @cache
    def homes() -> Mapping[str, tuple[str, str]]:
        source = Path(str(module.__file__)).read_text(encoding="utf-8").partition("\nif TYPE_CHECKING:\n")[2]
        imports = re.findall(r"^    from ([\w.]+) import (\([^)]*\)|.*)$", source, re.MULTILINE)
        words = [(home, name.split()) for home, names in imports for name in names.strip("()").split(",")]
        return {name[-1]: (home, name[0]) for home, name in words if name}

    def load(name: str) -> Any:
        if name.startswith("__") or name not in module.__all__ or name not in homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home, original = homes()[name]
        value = getattr(import_module(home), original)
        setattr(module, name, value)
        return value

    return load, lambda: sorted({*vars(module), *module.__all__})
