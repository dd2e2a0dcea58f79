"""YAML configs: read strictly, nested, and merged, later ones over earlier ones."""

import re
from pathlib import Path
from typing import Any

import yaml

from ..errors import UserError, first_sentence


class _Loader(yaml.SafeLoader):
    """Reads ``1e-3`` as the number that it is in YAML 1.2, a date as text, and refuses a key that is given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [str(key.value).removesuffix("+") for key, _ in node.value]
        for (key, _), name in zip(node.value, names, strict=True):
            if name != "<<" and names.count(name) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"'{name}' is given twice", key.start_mark)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith("timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def read_config(path: str) -> dict[str, Any]:
    """Reads a config file, or YAML text that starts with a brace; an empty one is an empty dict."""
    name, text = ("--config", path) if path.lstrip().startswith("{") else (path, None)
    try:
        values = yaml.load(text or Path(path).read_text("utf-8-sig"), Loader=_Loader)  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UserError(f"{name}{line}: {error.problem}") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"--config: '{path}' cannot be read: {first_sentence(error)}") from error
    if values is not None and not isinstance(values, dict):
        raise UserError(f"{name}: expected 'option: value', got '{values}'")
    return nested(values or {})


def nested(values: dict[Any, Any]) -> dict[str, Any]:
    """Nests dotted keys: ``model.arch: x`` becomes ``model: {arch: x}``."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        inner: Any = nested(value) if isinstance(value, dict) else value
        for name in reversed(str(key).split(".")):
            inner = {name: inner}
        result = merged(result, inner, append=False)
    return result


def merged(below: dict[str, Any], above: dict[str, Any], append: bool = True) -> dict[str, Any]:
    """Merges two configs; the second wins, a list replaces, and ``name+`` appends to a list."""
    result = dict(below)
    for key, value in above.items():
        name = key.removesuffix("+") if append else key
        before = result.get(name)
        if key != name:
            result[name] = [*_listed(before), *_listed(value)]
        elif isinstance(before, dict) and isinstance(value, dict):
            result[name] = merged(before, value, append)
        else:
            result[name] = value
    return result


def dump(values: dict[str, Any]) -> str:
    """Formats a config as YAML on one line, with every text quoted so that none is read as a number."""
    return yaml.safe_dump(values, default_style='"', default_flow_style=True, width=10**9, allow_unicode=True).strip()


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]
