"""Config files: YAML read as options by their full names, and written."""

import math
import os
import re
from pathlib import Path
from typing import Any

import yaml

from ..errors import UserError, first_sentence

Options = dict[str, Any]
"""Options by their full names, such as ``model.optimizer.lr``; ``model.optimizer`` itself is the class."""

CLASS_KEYS = (
    *("data", "model", "model.loss", "model.optimizer", "model.lr_scheduler"),
    *("trainer.logger", "trainer.strategy", "trainer.profiler"),
)
"""Options that take one class; ``trainer.callbacks`` is a list, in which a class follows another."""
_GROUPS = ("trainer", "callbacks", *CLASS_KEYS)
_TAG = "tag:yaml.org,2002:"
_NUMBER = re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+")
_LARGEST = 100_000  # nodes, with aliases expanded


class _Loader(yaml.SafeLoader):
    """Reads ``1e-3`` as a number, as YAML 1.2 does, and a date as text.

    Refuses aliases that multiply, and a key that is given twice.
    """

    def resolve(self, kind: type, value: Any, implicit: Any) -> Any:
        if kind is yaml.ScalarNode and implicit[0] and _NUMBER.fullmatch(value):
            return f"{_TAG}float"
        tag = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]  # of yaml
        return f"{_TAG}str" if tag == f"{_TAG}timestamp" else tag

    def get_single_node(self) -> yaml.Node | None:
        node: yaml.Node | None = super().get_single_node()
        if node is not None and _size(node, {}) > _LARGEST:
            raise yaml.YAMLError("its aliases multiply")
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = set[str]()
        for key, _ in node.value:
            if (name := str(key.value).removesuffix("+")) in keys - {"<<"}:
                problem = f"'{name}' is given twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            keys.add(name)
        return super().construct_mapping(node, deep)


def _size(node: yaml.Node, sizes: dict[int, float]) -> float:
    """Counts the nodes of a document, with aliases expanded."""
    if id(node) not in sizes:
        sizes[id(node)] = math.inf  # if an alias refers to what contains it
        items = node.value if isinstance(node, yaml.CollectionNode) else []
        children = [child for item in items for child in (item if type(item) is tuple else [item])]
        sizes[id(node)] = 1 + sum(_size(child, sizes) for child in children)
    return sizes[id(node)]


def read_yaml(text: str, name: str) -> Any:
    """Reads YAML; ``name`` says in messages where it is from."""
    try:
        return yaml.load(text, Loader=_Loader)  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UserError(f"{name}{line}: {error.problem}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise UserError(f"{name} cannot be read: {first_sentence(error)}") from error


def read_config(path: str) -> Options:
    """Reads a config file, or YAML text that starts with a brace; an empty one is an empty dict."""
    name, text = path, ""
    if path.lstrip().startswith("{"):
        name, text = "--config", path
    # a FIFO would be waited for; the pipe of a shell's <(...) resolves to no path
    elif os.path.exists(real := os.path.realpath(path)) and not os.path.isfile(real):
        raise UserError(f"--config: '{path}' is not a file")
    try:
        values = read_yaml(text or Path(path).read_text("utf-8-sig"), name)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--config: '{path}' cannot be read: {first_sentence(error)}") from error
    if values is not None and not isinstance(values, dict):
        raise UserError(f"{name}: expected 'option: value', got '{str(values)[:40]}'")
    return flat(values or {})


def flat(values: dict[Any, Any], group: str = "") -> Options:
    """Names options in full, as flags do: ``model: {init_args: {arch: x}}`` becomes ``model.arch: x``."""
    options: Options = {}
    for key, value in values.items():
        parts = f"{group}.{key}".split(".")
        name = ".".join(part for part in parts if part not in ("", "class_path", "init_args"))
        if isinstance(value, dict) and name in _GROUPS:
            added = flat(value, name)
        elif value is not None and name in ("trainer", "callbacks"):
            raise UserError(f"--config: {name} must hold options, got '{value}'")
        elif value is None and name in ("trainer", "callbacks", "data", "model"):
            continue  # a group without options
        else:
            added = {name: value}
        names = {option.removesuffix("+") for option in options}
        for twice in names & {option.removesuffix("+") for option in added}:
            raise UserError(f"--config: '{twice}' is given twice")
        options |= added
    return options


def dump(options: Options) -> str:
    """Formats options as YAML on one line, with every text quoted so that none is read as a number."""
    config: dict[str, Any] = {}
    for name, value in sorted(options.items()):  # a class comes before its arguments
        *groups, last = name.split(".")
        place = config
        for depth, group in enumerate(groups, start=1):
            place = place.setdefault(group, {})
            if ".".join(groups[:depth]) in CLASS_KEYS and last != "dict_kwargs":
                place = place.setdefault("init_args", {})
        place[last] = {"class_path": path_of(value)} if isinstance(value, type) else value
    style: dict[str, Any] = {"default_style": '"', "default_flow_style": True, "width": math.inf}
    text: str = yaml.safe_dump(config, allow_unicode=True, **style)
    return text.strip()


def path_of(cls: type) -> str:
    """Returns the full path of a class, by which it is imported."""
    return f"{cls.__module__}.{cls.__qualname__}"
