"""Config files: safe YAML, read as options by their full names."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import yaml

from ..errors import UserError, first_sentence

Options = dict[str, object]
"""Options by their full names, such as ``model.optimizer.lr``; ``model.optimizer`` is the class."""

CLASS_KEYS = (
    *("data", "model", "model.loss", "model.optimizer", "model.lr_scheduler"),
    *("trainer.logger", "trainer.strategy", "trainer.profiler"),
)
"""Options that take one class."""
_GROUPS = ("data", "model", "trainer", "callbacks")
_EXPONENT = re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$")
_LARGEST = 100_000  # nodes, with aliases expanded


class _Loader(yaml.SafeLoader):
    """Refuses aliases that multiply, and a key that is given twice."""

    yaml_implicit_resolvers: ClassVar = {  # numbers such as 1e-3, as in YAML 1.2
        first: [*resolvers, ("tag:yaml.org,2002:float", _EXPONENT)]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def get_single_node(self) -> yaml.Node | None:
        node: yaml.Node | None = super().get_single_node()
        if node is not None and _size(node, {}) > _LARGEST:
            raise yaml.YAMLError("its aliases multiply")
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        names = set[str]()
        for key, _ in node.value:
            if str(key.value) in names:
                problem = f"'{key.value}' is given twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            names.add(str(key.value))
        return super().construct_mapping(node, deep)


def _size(node: yaml.Node, sizes: dict[int, float]) -> float:
    """Counts the nodes of a document, with aliases expanded."""
    if id(node) not in sizes:
        sizes[id(node)] = math.inf  # if an alias refers to what contains it
        items = node.value if isinstance(node, yaml.CollectionNode) else []
        children = [child for item in items for child in (item if type(item) is tuple else [item])]
        sizes[id(node)] = 1 + sum(_size(child, sizes) for child in children)
    return sizes[id(node)]


def read_yaml(text: str, name: str) -> object:
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
    if path.startswith("{"):
        return flat(read_yaml(path, "--config"))
    try:
        text = Path(path).read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--config: '{path}' cannot be read: {first_sentence(error)}") from error
    return flat(read_yaml(text, path) or {})


def flat(values: object, group: str = "") -> Options:
    """Names options in full: ``model: {init_args: {arch: x}}`` becomes ``model.arch: x``."""
    if not isinstance(values, Mapping):
        raise UserError(f"--config: expected 'option: value', got '{str(values)[:40]}'")
    options: Options = {}
    for key, value in values.items():
        parts = f"{group}.{key}".split(".")
        name = ".".join(part for part in parts if part not in ("", "class_path", "init_args"))
        inner: Options = {name: value}
        is_empty = value is None and name in _GROUPS
        if is_empty or (isinstance(value, dict) and name in (*_GROUPS, *CLASS_KEYS)):
            inner = flat(value or {}, name)
        for repeated in options.keys() & inner.keys():
            raise UserError(f"--config: '{repeated}' is given twice")
        options |= inner
    return options
