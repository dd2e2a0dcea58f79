"""The one private name of jsonargparse that commands use, and why; see ``exact/_upstream.py``."""

from argparse import Action

from jsonargparse import ArgumentParser

# the first 12 digits of BLAKE2b of the source in jsonargparse 4.53.0
PRIVATE_NAMES = {
    # options_of: argparse has no public list of a parser's options
    "jsonargparse._core:ArgumentParser.get_config_files": "b98890f21fdb",
}


def options_of(parser: ArgumentParser) -> list[Action]:
    """Returns the options of a parser, in their order."""
    return list(parser._actions)
