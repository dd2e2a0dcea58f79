"""YAML from anywhere: without aliases, which can multiply."""

import re

import yaml

from ..errors import UserError, first_sentence

_EXPONENT = re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$")


class _Loader(yaml.SafeLoader):
    """Refuses aliases."""

    yaml_implicit_resolvers = {  # numbers such as 1e-3, as in YAML 1.2
        first: [*resolvers, ("tag:yaml.org,2002:float", _EXPONENT)]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            problem = "aliases are not supported; write the value out"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=self.get_mark())
        node: yaml.Node | None = super().compose_node(parent, index)
        return node


def read_yaml(text: str, name: str) -> object:
    """Reads YAML; ``name`` says in messages where it is from."""
    try:
        return yaml.load(text, Loader=_Loader)  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UserError(f"{name}{line}: {error.problem}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise UserError(f"{name} cannot be read: {first_sentence(error)}") from error
