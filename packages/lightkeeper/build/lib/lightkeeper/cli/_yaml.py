"""YAML of configs, read as jsonargparse reads it."""

import yaml
from jsonargparse import get_loader

from ..exact._errors import UserError


def read_yaml(text: str, name: str) -> object:
    """Reads YAML; ``name`` says in messages where it is from."""
    try:
        return get_loader("yaml")(text)  # which reads 1e-3 as a number
    except yaml.YAMLError as error:
        raise UserError(f"{name}: {' '.join(str(error).split())}") from error
