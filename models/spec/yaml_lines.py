"""A YAML file as plain data, with the line of every entry.

PyYAML's own loader forgets lines and lets a later duplicate key win; composing to nodes first keeps both visible.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, TypeAlias

import yaml

from weft.models.files.limits import MAX_DEPTH, MAX_ENTRIES

#: Keys and indices from the top of the file to an entry.
Path: TypeAlias = Sequence[str | int]


class YamlError(ValueError):
    """Text that is not one YAML mapping; ``line`` counts from 1."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


class LinedYaml:
    """One YAML document whose top is a mapping. Raises :class:`YamlError`."""

    def __init__(self, text: str) -> None:
        try:
            loader = yaml.SafeLoader(text)
            node = loader.get_single_node()
            if node is None:
                raise YamlError("is empty, it must be a mapping with the keys of a spec")
            _check(node, (), [0])
            value = loader.construct_document(node)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            raise YamlError(f"not YAML ({error.problem or error.context})", mark.line + 1 if mark else None) from None
        except yaml.YAMLError as error:
            raise YamlError(f"not YAML ({str(error).splitlines()[0]})") from None
        except RecursionError:
            raise YamlError("is nested too deeply") from None
        except ValueError as error:  # a date like 2020-13-45 is a syntax error that PyYAML does not mark
            raise error if isinstance(error, YamlError) else YamlError(f"not YAML ({error})") from None
        if not isinstance(node, yaml.MappingNode):
            raise YamlError(f"is {_kind(node)}, it must be a mapping with the keys of a spec", node.start_mark.line + 1)
        self._node = node
        self.value: dict[str, Any] = value

    def line(self, path: Path) -> int:
        """The line of the entry at ``path``, or of its closest ancestor in the file."""
        _, at, _ = self._descend(path)
        return int(at.start_mark.line) + 1

    def text(self, path: Path) -> str | None:
        """The text at ``path``, if it is a plain value, cut to a readable length; else its kind."""
        depth, _, node = self._descend(path)
        if depth < len(path):
            return None
        if isinstance(node, yaml.ScalarNode):
            written = node.value if len(node.value) <= 60 else node.value[:57] + "..."
            return repr(written) if node.tag == "tag:yaml.org,2002:str" else (written or "empty")
        return _kind(node)

    def _descend(self, path: Path) -> tuple[int, yaml.Node, yaml.Node]:
        """The existing length of ``path``, the node with its line (a key, for mappings) and the node there."""
        at: yaml.Node = self._node
        node: yaml.Node = self._node
        for depth, step in enumerate(path):
            if isinstance(node, yaml.MappingNode):
                pair = next(((key, item) for key, item in node.value if key.value == step), None)
                if pair is None:
                    return depth, at, node
                at, node = pair
            elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
                at = node = node.value[step]
            else:
                return depth, at, node
        return len(path), at, node


def show_path(path: Path) -> str:
    """``model.layers[2].forward`` for ``("model", "layers", 2, "forward")``."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else (f".{step}" if text else step)
    return text


def _check(node: yaml.Node, path: tuple[str | int, ...], count: list[int]) -> None:
    """Refuse duplicate keys, non-text keys, and files that expand endlessly."""
    count[0] += 1
    if count[0] > MAX_ENTRIES or len(path) > MAX_DEPTH:
        raise YamlError(f"expands to more than {MAX_ENTRIES} entries or {MAX_DEPTH} levels", node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            _check(item, (*path, i), count)
    elif isinstance(node, yaml.MappingNode):
        first_line: dict[Hashable, int] = {}
        for key, item in node.value:
            line = key.start_mark.line + 1
            where = f"{show_path(path)}: " if path else ""
            if not isinstance(key, yaml.ScalarNode) or key.tag not in ("tag:yaml.org,2002:str",
                                                                       "tag:yaml.org,2002:merge"):
                name = repr(key.value) if isinstance(key, yaml.ScalarNode) else _kind(key)
                raise YamlError(f"{where}the key {name} is not text", line)
            if key.value in first_line:
                raise YamlError(f"{where}the key {key.value!r} appears twice, first on line {first_line[key.value]}",
                                line)
            first_line[key.value] = line
            _check(item, (*path, key.value), count)


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    return f"the value {node.value[:40]!r}"
