"""YAML from anywhere: without aliases that multiply and keys that are given twice."""

import math
import re

import yaml

from ..errors import UserError, first_sentence

_EXPONENT = re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$")
_LARGEST = 100_000  # nodes, with aliases expanded


class _Loader(yaml.SafeLoader):
    """Refuses aliases that multiply, and a key that is given twice."""

    yaml_implicit_resolvers = {  # numbers such as 1e-3, as in YAML 1.2
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
