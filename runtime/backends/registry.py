"""The registry of backends, which compute parts of a captured graph.

A backend is one file with one function, which builds a callable from a part::

    @weft.backend("mine", patterns=[("linear", "gelu")], supports=lambda part: part.dtype == torch.float32)
    def build(part):
        return lambda x: (my_linear_gelu(x, part.module.weight),)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, TypedDict, Unpack

from torch import Tensor

if TYPE_CHECKING:
    from weft.runtime.backends.graph import GraphPart, UnitGraph

#: The backend that computes every operator by plain torch.
EAGER = "eager"
#: The backends that come with weft: modules of :mod:`weft.runtime.backends.shipped`.
SHIPPED = ("eager", "inductor", "sdpa", "onnxruntime", "cuda_graphs")

#: Builds a function of a part's inputs that returns its results in their order.
Build = Callable[["GraphPart"], Callable[..., Sequence[Tensor]]]
#: Finds parts: sets of a graph's units, by number.
Patterns = Callable[["UnitGraph"], Iterable[Collection[int]]]


class BackendError(ValueError):
    """An invalid backend, part, or assignment; the message is one sentence with the name and the cause."""


class BackendFacts(TypedDict, total=False):
    """The optional properties of a backend: see :func:`backend`."""

    supports: Callable[[GraphPart], bool]
    devices: Sequence[str]
    trains: bool
    missing: Callable[[], str | None]
    version: Callable[[], str]
    prepare: Callable[[], None]


@dataclass(frozen=True)
class Backend:
    """One backend, as registered with :func:`backend`. ``source``: the file that registered it."""

    name: str
    build: Build
    patterns: Patterns | Sequence[Sequence[str]]
    source: str
    supports: Callable[[GraphPart], bool] = lambda part: True
    devices: Sequence[str] = ("cpu", "cuda")
    trains: bool = False
    missing: Callable[[], str | None] = lambda: None
    version: Callable[[], str] = lambda: ""
    prepare: Callable[[], None] = lambda: None

    def unusable(self, device: str, trains: bool) -> str | None:
        """The reason why the backend cannot be used on this kind of device (such as ``"cpu"``), for training or not;
        ``None`` if it can."""
        if device not in self.devices:
            return f"is for {' and '.join(self.devices)}, not for {device}"
        if trains and not self.trains:
            return "has no backward"
        return self.missing()


_REGISTERED: dict[str, Backend] = {}


def backend(name: str, *, patterns: Patterns | Sequence[Sequence[str]] = (), build: Build | None = None,
            **facts: Unpack[BackendFacts]) -> Callable[[Build], Build]:
    """Register a backend, as a decorator of its build function, or directly with ``build=``.

    ``patterns``: its possible parts. Either chains of operators' names, such as ``[("linear", "gelu")]``, each result
    read by the next operator alone; or a function of the graph that returns connected and convex sets of units
    (:mod:`weft.runtime.backends.patterns` has some, such as ``regions`` for graph compilers). ``supports(part)``:
    whether the backend can compute a part.

    ``build(part)`` returns a function of the part's inputs that returns its results, in the part's order. ``devices``:
    kinds of device. ``trains``: whether it supports autograd. ``missing()`` returns why it cannot be used here, such as
    a missing package, or ``None``. ``version()`` is part of the key of its measurements. ``prepare()`` loads slow
    dependencies; it is called once, in the process from which trials are forked. A later backend replaces an earlier
    one of the same name. Raises :class:`BackendError` for an invalid name or pattern.
    """
    if not isinstance(name, str) or not name or name != name.strip() or not name.isprintable():
        raise BackendError(f"a backend's name is {name!r:.60}, it must be text without spaces around it")
    if not callable(patterns):
        chains = [[chain] if isinstance(chain, str) else list(chain) for chain in patterns]
        if not all(chain and all(isinstance(one, str) for one in chain) for chain in chains):
            raise BackendError(f"backend {name!r}: patterns must be chains of operators' names, or a function of the "
                               "graph")
        patterns = chains

    def register(build: Build) -> Build:
        source = getattr(sys.modules.get(build.__module__), "__file__", None) or ""
        _REGISTERED[name] = Backend(name, build, patterns, source, **facts)
        return build

    if build is not None:
        register(build)
    return register


def registered() -> Mapping[str, Backend]:
    """All backends by name: weft's own, eager first, and registered ones."""
    own = dict(_REGISTERED)
    for module in SHIPPED:
        import_module(f"weft.runtime.backends.shipped.{module}")
    _REGISTERED.update(own)  # a user's backend replaces a shipped one of the same name
    return {EAGER: _REGISTERED[EAGER], **_REGISTERED}


def backends_named(names: str | Sequence[str], device: str, trains: bool = False) -> tuple[list[Backend], list[str]]:
    """The backends with these names that can be used on ``device``, always with eager, and a sentence for each that
    cannot. ``names``: comma-separated text, a sequence, or ``"all"`` or ``"auto"`` for every backend.

    Raises :class:`BackendError` for a name that is not registered.
    """
    known = registered()
    if names in ("all", "auto"):
        requested = [*known]
    else:
        requested = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    for name in requested:
        if name not in known:
            raise BackendError(f"backends names {name!r:.60}, which nobody has registered; there are "
                               f"{', '.join(known)}, and all")
    usable, notes = list[Backend](), list[str]()
    for name in dict.fromkeys((EAGER, *requested)):
        why = known[name].unusable(device, trains)
        if why is None:
            usable.append(known[name])
        elif names not in ("all", "auto") or device in known[name].devices:
            notes.append(f"{name}: skipped, it {why}")
    return usable, notes
