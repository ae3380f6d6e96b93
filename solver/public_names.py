"""A package's public names, each loaded when it is first used (PEP 562): importing the package costs nothing."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

__all__ = ["listed", "loaded"]


def loaded(package: str, homes: Mapping[str, str], name: str, within: str | None = None) -> Any:
    """``name`` of ``package``, from the module that ``homes`` says; from then on the package has it itself.

    Modules are those of ``within``, by default of the package; one that begins with ``weft.`` is its whole name.

    What a package's ``__getattr__`` returns. Raises ``AttributeError`` for a name that is not among ``homes``.
    """
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    home = homes[name] if homes[name].startswith("weft.") else f"{within or package}.{homes[name]}"
    value = getattr(import_module(home), name)
    setattr(sys.modules[package], name, value)
    return value


def listed(package: str) -> list[str]:
    """What ``dir`` shows of ``package``: what it has by now and its public names. What its ``__dir__`` returns."""
    module = sys.modules[package]
    return sorted({*vars(module), *module.__all__})
