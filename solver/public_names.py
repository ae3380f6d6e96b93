"""A package's public names, each loaded when it is first used (PEP 562): importing the package costs nothing."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

__all__ = ["loaded"]


def loaded(package: str, homes: Mapping[str, str], name: str) -> Any:
    """``name`` of ``package``, from the module of it that ``homes`` says; from then on the package has it itself.

    What a package's ``__getattr__`` returns. Raises ``AttributeError`` for a name that is not among ``homes``.
    """
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    value = getattr(import_module(f"{package}.{homes[name]}"), name)
    setattr(sys.modules[package], name, value)
    return value
