"""Packages that are slow to import, each imported when it is first used: a search that needs no model and no graph ends
before OR-Tools would be loaded.

``cp_model`` is ``ortools.sat.python.cp_model``, ``nx`` is ``networkx``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["cp_model", "nx"]

if TYPE_CHECKING:
    import networkx as nx
    from ortools.sat.python import cp_model
else:

    class _Late:
        """The module ``name``, once it is used; attributes are cached, so that using them again costs nothing."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            value = getattr(import_module(self._name), name)
            setattr(self, name, value)
            return value

    cp_model = _Late("ortools.sat.python.cp_model")
    nx = _Late("networkx")
