"""Packages that are slow to import, each imported when it is first used: a search that needs no model and no graph ends
before OR-Tools would be loaded.

``cp_model`` is ``ortools.sat.python.cp_model``, ``nx`` is ``networkx``. OR-Tools comes without pandas, which takes
longer to import than the rest of it and only serves tables of variables: it is imported when one is made.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["cp_model", "nx"]


class _Late:
    """The module ``name``, imported on first use; attributes are cached. Its own import of ``later`` is deferred until
    that is used in turn; ``named`` are the classes of ``later`` that its annotations mention."""

    def __init__(self, name: str, later: str = "", *named: str) -> None:
        self._name, self._later, self._named = name, later, named

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module(), name)
        setattr(self, name, value)
        return value

    def _module(self) -> ModuleType:
        if not self._later or {self._name, self._later} & sys.modules.keys():
            return import_module(self._name)
        stand_in = sys.modules[self._later] = ModuleType(self._later)
        vars(stand_in).update({name: type(name, (), {}) for name in self._named})
        module: ModuleType | None = None
        try:
            with suppress(Exception):  # another version may use more of it during its own import
                module = import_module(self._name)
        finally:
            del sys.modules[self._later]
        if module is None:
            return import_module(self._name)
        for key in [key for key, value in vars(module).items() if value is stand_in]:
            setattr(module, key, _Late(self._later))
        return module


if TYPE_CHECKING:
    import networkx as nx
    from ortools.sat.python import cp_model
else:
    cp_model = _Late("ortools.sat.python.cp_model", "pandas", "Index", "Series")
    nx = _Late("networkx")
