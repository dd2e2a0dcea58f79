"""Reading a YAML config, with the line of everything in it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

from ..errors import UserError

MAX_DEPTH, MAX_VALUES = 50, 100_000
"""No config comes near; a file that does is damaged, or made to exhaust the memory of who reads it."""

_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "seq", "map", "merge")}


class _Loader(yaml.SafeLoader):
    """Reads ``1e-3`` as the number that it is in YAML 1.2, and a date as text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag in _TAGS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


@dataclass(frozen=True)
class Config:
    """What a config file says.

    Attributes:
        name: The file, as the user gave it.
        values: The values; dotted keys are nested.
        lines: The line of each key, from 1, by the key's path, as in ``("model", "arch")``, without the ``+`` of a list
            that is added to.
    """

    name: str
    values: dict[str, Any]
    lines: dict[tuple[str, ...], int] = field(default_factory=dict)

    def place(self, *key: str) -> str:
        """The file, and the line of a key or of the nearest one that holds it, for a message."""
        for length in range(len(key), 0, -1):
            if key[:length] in self.lines:
                return f"{self.name}, line {self.lines[key[:length]]}"
        return self.name


def read_config(path: str) -> Config:
    """Reads a config; an empty one says nothing.

    Args:
        path: The file.

    Raises:
        UserError: There is no such file, or it is no YAML mapping.
    """
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"--config: '{path}' is not a text file in UTF-8") from None
    except (OSError, ValueError) as error:  # a path with a null byte is the latter
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"--config: '{path}' cannot be read: {reason}") from error
    return parse_config(text, path)


def parse_config(text: str, name: str) -> Config:
    """Reads a config's text.

    Args:
        text: YAML.
        name: The file, for messages.

    Raises:
        UserError: It is no YAML mapping.
    """
    loader: _Loader | None = None
    try:
        _require_moderate(text, name)
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None or root.tag == "tag:yaml.org,2002:null":
            return Config(name, {})
        if not isinstance(root, yaml.MappingNode):
            raise UserError(f"{name}, line {root.start_mark.line + 1}: expected 'option: value', got '{_short(text)}'")
        lines = dict(_lines(root, name))
        values: dict[str, Any] = loader.construct_document(root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        what = ", ".join(part for part in (error.context, error.problem) if part)
        raise UserError(f"{name}{line}: {what}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"{name}: {' '.join(str(error).split())}") from error
    return Config(name, _nested(values), lines)


def local_path(value: Any) -> Any:
    """The path that a ``file://`` URL stands for; anything else as it is."""
    return unquote(urlsplit(value).path) if isinstance(value, str) and value.startswith("file://") else value


def _require_moderate(text: str, name: str) -> None:
    """Refuses what would take all stack or all memory; reading events takes neither."""
    count = 0
    sizes: dict[str, int] = {}
    open_anchors: list[tuple[str | None, int]] = []
    for event in yaml.parse(text, Loader=_Loader):
        count += 1
        if isinstance(event, yaml.CollectionStartEvent):
            open_anchors.append((event.anchor, count))
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, start = open_anchors.pop()
            if anchor is not None:
                sizes[anchor] = count - start
        elif isinstance(event, yaml.AliasEvent):
            # what holds itself has no end
            count += MAX_VALUES if event.anchor in dict(open_anchors) else sizes.get(event.anchor or "", 0)
        if len(open_anchors) > MAX_DEPTH or count > MAX_VALUES:
            line = event.start_mark.line + 1 if event.start_mark else 1
            raise UserError(f"{name}, line {line}: too deep or too large for a config")


def _lines(node: yaml.Node, name: str, parents: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
    """The line of each key below a node.

    Raises:
        UserError: A value is no plain one, or a key is given twice.
    """
    if node.tag not in _TAGS:
        raise UserError(f"{name}, line {node.start_mark.line + 1}: '{node.tag}' does not belong in a config")
    if isinstance(node, yaml.SequenceNode):
        for child in node.value:
            yield from _lines(child, name, parents)
    elif isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode) or key.tag not in _TAGS:
                raise UserError(f"{name}, line {line}: a key must be a name")
            bare = key.value.removesuffix("+")  # a list beside what is added to it would drop one of them
            if bare in seen:
                raise UserError(f"{name}, line {line}: '{bare}' is given twice")
            seen.add(bare)
            path = (*parents, *bare.split("."))
            yield path, line
            yield from _lines(value, name, path)


def _nested(values: dict[Any, Any]) -> dict[str, Any]:
    """Nests dotted keys: ``model.arch: x`` is ``model: {arch: x}``."""
    nested: dict[str, Any] = {}
    for key, value in values.items():
        inner = _nested(value) if isinstance(value, dict) else local_path(value)
        for name in reversed(str(key).split(".")):
            inner = {name: inner}
        nested = _merged(nested, inner)
    return nested


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        before = merged.get(key)
        merged[key] = _merged(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return merged


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 40 else f"{line[:37]}..."
