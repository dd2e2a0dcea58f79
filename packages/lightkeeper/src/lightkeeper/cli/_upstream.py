"""The private names of jsonargparse that commands use, and why; see ``exact/_upstream.py``."""

from argparse import Action

from jsonargparse import ArgumentParser
from jsonargparse._util import get_import_path

# the first 12 digits of BLAKE2b of the source in jsonargparse 4.53.0
PRIVATE_NAMES = {
    # options_of: argparse has no public list of a parser's options
    "jsonargparse._core:ArgumentParser.get_config_files": "b98890f21fdb",
    # import_path: the shortest path of a class, by which it writes configs
    "jsonargparse._util:get_import_path": "1ab06b0d8927",
}


def options_of(parser: ArgumentParser) -> list[Action]:
    """Returns the options of a parser, in their order."""
    return list(parser._actions)


def import_path(cls: type) -> str:
    """Returns the path by which configs name a class."""
    return str(get_import_path(cls))  # None is for what is no class
