"""The keys of a Hugging Face config, read by name and kind; an error is one sentence with its file and key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from weft.models.files.limits import MAX_WIDTH
from weft.solver.io.entries import show

#: Maximum stages of a model with falling resolution.
_STAGES = 64


class ConfigError(ValueError):
    """A config.json that cannot be used: one sentence with the file and the key at fault."""


class UnknownType(ConfigError):
    """A config.json with an unsupported ``model_type``."""


class Config:
    """The keys of a config, or of an object in one.

    ``values``: the file's contents; ``defaults``: of missing keys. ``where`` is the prefix of every sentence. A
    ``null`` key counts as explicitly empty, which differs from a missing one.
    """

    def __init__(self, values: Mapping[str, Any], where: str, defaults: Mapping[str, Any] | None = None) -> None:
        self.values, self.where, self.defaults = values, where, defaults or {}

    def get(self, *names: str) -> Any:
        """The value of the first of ``names`` in the config, else its default; ``None`` for neither."""
        return self._found(names)[1]

    def _found(self, names: tuple[str, ...]) -> tuple[str, Any]:
        for source in (self.values, self.defaults):
            for name in names:
                if name in source:
                    return name, source[name]
        return names[0], None

    def refuse(self, name: str, value: object, remedy: str) -> NoReturn:
        """Raises :class:`ConfigError` for the value of ``name``."""
        raise ConfigError(f"{self.where}: {name} is {show(value)}, {remedy}")

    def maybe(self, *names: str, least: int = 1) -> int | None:
        """The whole number under the first existing one of ``names``, or ``None``."""
        name, value = self._found(names)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            self.refuse(name, value, f"it must be a whole number of at least {least}")
        return value

    def number(self, *names: str, default: int | None = None) -> int:
        """The same for a required number: ``default`` without it."""
        value = self.maybe(*names, least=0 if default == 0 else 1)
        if value is not None:
            return value
        if default is None:
            raise ConfigError(f"{self.where}: {names[0]} is missing; give it, a whole number of at least 1")
        return default

    def numbers(self, name: str) -> tuple[int, ...]:
        """The list of whole numbers under ``name``."""
        value = self.get(name)
        if not isinstance(value, list) or not 1 <= len(value) <= _STAGES or any(
                type(entry) is not int or not 1 <= entry <= MAX_WIDTH for entry in value):
            self.refuse(name, value, f"it must be a list of 1 to {_STAGES} whole numbers from 1 to {MAX_WIDTH}")
        return tuple(value)

    def flag(self, name: str, default: bool) -> bool:
        """The boolean under ``name``."""
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            self.refuse(name, value, "it must be true or false")
        return default if value is None else value

    def require(self, name: str, value: bool) -> None:
        """Refuses a flag other than ``value``: its effect is not supported."""
        if self.flag(name, value) != value:
            self.refuse(name, not value, f"known is {str(value).lower()} alone; capture such a model (weft capture)")

    def word(self, name: str, known: Mapping[str, str]) -> str:
        """weft's word for the one under ``name``."""
        value = self.get(name)
        if not isinstance(value, str) or value not in known:
            self.refuse(name, value, f"the known ones are {', '.join(known)}")
        return known[value]

    def has(self, name: str) -> bool:
        """Whether the config or its defaults have a value for ``name``."""
        return name in self.values or name in self.defaults

    def section(self, name: str, defaults: Mapping[str, Any] | None = None) -> Config:
        """The object under ``name``, empty if missing."""
        value = self.get(name) or {}
        if not isinstance(value, dict):
            self.refuse(name, value, "it must be an object")
        return Config(value, f"{self.where}: {name}", defaults)

    def classes(self) -> int:
        """The number of classes; 1000 (ImageNet's) if the config does not give it."""
        labels = self.get("id2label")
        return len(labels) if isinstance(labels, dict) and labels else self.number("num_labels", default=1000)

    def windowed(self, pattern: tuple[bool, ...]) -> tuple[bool, ...] | None:
        """The layers with windowed attention, by ``layer_types`` or else ``pattern``; ``None``: none."""
        types = self.get("layer_types")
        if types is not None:
            if not isinstance(types, list) or not types or not all(isinstance(kind, str) for kind in types):
                self.refuse("layer_types", types, "it must list a word for each layer, such as full_attention")
            for kind in types:
                if kind not in ("full_attention", "sliding_attention", "chunked_attention"):
                    self.refuse("layer_types", kind, "of each layer known are full_attention, sliding_attention and "
                                                     "chunked_attention; capture such a model (weft capture)")
            pattern = tuple(kind != "full_attention" for kind in types)
        return pattern if any(pattern) else None
