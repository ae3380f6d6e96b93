"""Hooks that wait for a module's parameters just before its forward reads them.

A module's forward is assumed to read its own parameters. Some forwards read those of a child without calling it (an
attention reads its output projection's weight). So the first forward waits for all parameters and records the called
modules; later, the nearest called ancestor of a module that was not called waits for its parameters. In evaluation,
forwards may take other paths, so modules wait for all parameters. One case cannot be detected: a forward that reads a
child's parameters and calls that child only afterwards.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from typing import Any

from torch import nn


class _Hook:
    """Calls ``hook``. A copy, as in a copied or saved module, does nothing, as that module has no optimizer."""

    def __init__(self, hook: Callable[..., None] | None = None) -> None:
        self.function = hook  # not ``hook``: torch's wrapper has one, and this object's attributes are copied over it

    def __call__(self, *given: Any) -> None:
        if self.function is not None:
            self.function(*given)

    def __reduce__(self) -> tuple[type[_Hook], tuple[()]]:
        return _Hook, ()


def require_unread(root: nn.Module) -> None:
    """Raise ``ValueError`` if modules of ``root`` already wait for the parameters of an optimizer."""
    for module in root.modules():
        if any(isinstance(hook, _Hook) and hook.function is not None for hook in module._forward_pre_hooks.values()):
            raise ValueError("the module is trained by a ShardedOptimizer already: close() that one first")


class Readers:
    """Calls ``wait`` with the parameters that a module of ``root`` is about to read."""

    def __init__(self, root: nn.Module, wait: Callable[[Collection[nn.Parameter]], None]) -> None:
        self._root, self._wait = root, wait
        self._all = tuple(root.parameters())
        self._called: set[nn.Module] = set()
        self._reads: dict[nn.Module, tuple[nn.Parameter, ...]] | None = None  # by module; None: not known yet
        self._hooks: list[Any] = [module.register_forward_pre_hook(_Hook(self._before)) for module in root.modules()]
        for module in root.modules():
            saved = _Hook(self._saved)
            self._hooks += [module.register_state_dict_pre_hook(saved),  # type: ignore[no-untyped-call]
                            module.register_load_state_dict_pre_hook(saved)]  # type: ignore[no-untyped-call]

    def learn(self) -> None:
        """End the first forward: from now on each module waits only for the parameters that it reads."""
        if self._reads is None and self._called:
            self._reads = _reads(self._root, self._called)

    def remove(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()

    def _before(self, module: nn.Module, _: Any) -> None:
        if self._reads is None or module not in self._called:  # an unexpected call: other modules may be called too
            self._called.add(module)
            self._wait(self._all)
            self._reads = None if self._reads is None else _reads(self._root, self._called)
        elif not module.training:
            self._wait(self._all)
        else:
            self._wait(self._reads[module])

    def _saved(self, *_: Any) -> None:
        self._wait(self._all)


def _reads(root: nn.Module, called: Collection[nn.Module]) -> dict[nn.Module, tuple[nn.Parameter, ...]]:
    """The parameters that each called module reads: its own and those of modules inside that are not called."""
    found: defaultdict[nn.Module, dict[nn.Parameter, None]] = defaultdict(dict)
    nobody: dict[nn.Parameter, None] = {}  # read outside of all of them

    def visit(module: nn.Module, around: nn.Module | None) -> None:
        reader = module if module in called else around
        own = dict.fromkeys(module._parameters[name] for name in module._parameters)
        (nobody if reader is None else found[reader]).update({p: None for p in own if p is not None})
        for child in module.children():
            visit(child, reader)

    visit(root, None)
    return {module: tuple({**found[module], **nobody}) for module in called}
