"""Parser of a command: readable help, and errors of one line that suggest the closest option.

It imports neither torch nor Lightning, so that ``--help`` is quick.
"""

import json
import os
import re
import sys
from argparse import SUPPRESS, Action, ArgumentError, HelpFormatter
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from itertools import pairwise
from typing import Any, NoReturn

import yaml
from jsonargparse import ArgumentParser, get_loader

from ..exact._errors import UserError, require
from ._entry import end_with_error
from ._upstream import options_of

_LABEL = 40  # columns of an option's name
_NUMBER = re.compile(r"[-+]?[0-9_.]+([eE][-+]?[0-9]+)?$")
_NULLS = ("", "null", "~")
_load = get_loader("yaml")  # which reads 1e-3 as a number
_OUTPUTS = ("--output", "--output_predictions", "--embeddings")


class CommandParser(ArgumentParser):
    """A parser of options whose ``--help`` fits the terminal, and whose errors are one line.

    Options come from ``add_argument``, with types as in annotations.

    Example:
        >>> parser = CommandParser(description="Labels images.")
        >>> _ = parser.add_argument("--top_k", type=int, default=1, help="Classes to name.")
        >>> parser.parse_args(["--top_k", "3"]).top_k
        3

        A script ends with ``run_command(lambda: main(parser.parse_args()))``.
    """

    follows: Mapping[str, str] = {}
    """Options that cannot be given, by those that they follow from."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False} | kwargs)

    def add_import(self) -> None:
        """Adds ``--import``, whose modules are imported as it is parsed."""
        text = "Your module of the checkpoint's model, network or data"
        self.add_argument("--import", type=import_modules, help=f"{text}; or several: a,b.")

    def parse_args(  # type: ignore[override]  # jsonargparse has no overloads either
        self, args: Sequence[str] | None = None, *rest: Any, **options: Any
    ) -> Any:
        """Parses arguments, none of which may be empty."""
        words = sys.argv[1:] if args is None else [*args]
        require_values(words)
        return super().parse_args(words, *rest, **options)

    def format_help(self, formatter: HelpFormatter | None = None) -> str:
        """Returns the text of ``--help``."""
        return self.format_sections({"options": options_of(self)})

    def format_sections(self, sections: Mapping[str, Iterable[Action]]) -> str:
        """Returns the text of ``--help``, with options by their heading."""
        formatter = HelpFormatter(str(self.prog), max_help_position=_LABEL)
        options = options_of(self)
        positionals = [name_of(option) for option in options if not option.option_strings]
        usage = " ".join([str(self.prog), *positionals, "[--OPTION VALUE ...]"])
        formatter.add_usage(usage, (), ())
        formatter.add_text(self.description)
        for title, section in sections.items():
            formatter.start_section(title)
            formatter.add_arguments([in_short(option) for option in section])
            formatter.end_section()
        return f"{formatter.format_help()}\n{self.epilog or ''}\n"

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Prints jsonargparse's message in one line, with the closest name, and exits with 2."""
        if not self.exit_on_error:  # the parser of a class within another one
            super().error(message, ex)
        keys = list[str]()
        cause: BaseException | None = ex
        while cause is not None:  # the innermost error is about the argument itself
            _, is_of_key, text = str(cause).partition('Parser key "')
            if is_of_key and isinstance(cause, TypeError):
                key, _, message = text.partition('":')
                keys.append(key)
            elif isinstance(cause, ArgumentError):
                message = str(cause)
            cause = cause.__cause__
        line = " ".join([f"--{'.'.join(keys)}:" if keys else "", *message.split()]).strip()
        if unknown := re.search(r"(?:arguments: --|[Oo]ption ')([\w.-]+)", line):
            names = [*map(full_name, self.get_defaults(skip_validation=True).keys())]
            group = ".".join(keys) or unknown[1].rpartition(".")[0]
            inside = [name for name in names if name.startswith(f"{group}.")]
            nearest = closest(unknown[1], inside) or closest(unknown[1], names, cutoff=0.8)
            meant = self.follows.get(nearest or "", nearest)
            line += f"; did you mean --{meant}?" if meant else "; see --help"
        end_with_error(line)


def require_values(words: Sequence[str]) -> None:
    """Refuses empty arguments and values, which a shell makes of variables that are not set.

    An output must not be another argument, too, such as the file that is read.
    """
    for before, word in pairwise(["", *words]):
        option, equals, value = word.partition("=")
        if not word or (option.startswith("--") and equals and not value):
            option = option or (before if before.startswith("--") else "an argument")
            raise UserError(f"{option} has no value; is a variable of the command not set?")
        name = option if equals else before
        if name in _OUTPUTS:
            file = value or word
            files = [os.path.realpath(other.partition("=")[2] or other) for other in words]
            is_own = files.count(os.path.realpath(file)) == 1
            require(is_own, name, file, "a file that no other argument is")


def full_name(option: str) -> str:
    """Returns an option's name as configs have it here: without dashes and ``init_args``."""
    return option.removeprefix("--").removesuffix(".class_path").replace(".init_args.", ".")


def closest(word: str, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Returns the name whose last part is most similar to that of a word, if any is similar.

    Names are similar, too, if one is the initials of the other, as ``lr`` is of ``learning_rate``.
    """
    parts = {name.rpartition(".")[2].lower(): name for name in names}
    word = word.rpartition(".")[2].lower().replace("-", "_")
    matches = [part for part in parts if word in (part, _initials(part)) or part == _initials(word)]
    matches.sort(key=lambda part: (part != _initials(word), part != word))
    matches += get_close_matches(word, parts, n=1, cutoff=cutoff)
    return parts[matches[0]] if matches else None


def _initials(name: str) -> str:
    return "".join(part[:1] for part in name.split("_"))


def name_of(option: Action) -> str:
    """Returns an option's long name, or a positional argument's name in capitals."""
    names = [option.dest.upper(), *option.option_strings]
    return names[-1].removesuffix("+")


def in_short(option: Action) -> Action:
    """Returns an option with its default, and the first sentence of its help, without markup."""
    text = " ".join(str(option.help).replace("Advanced: ", "").replace("``", "").split())
    sentence = re.split(r"(?<=[\w)])\.(?:\s|$)|:$", text, maxsplit=1)[0].replace("%", "%%")
    if not option.option_strings:
        return Action([], option.dest, help=sentence, metavar=name_of(option))
    default = json.dumps(option.default, default=str).strip('"')
    is_shown = len(default) <= 12 and default not in ("null", "false", "[]", SUPPRESS)
    metavar = default if is_shown else ""
    return Action([name_of(option)], option.dest, help=sentence, metavar=metavar)


def import_modules(names: str) -> str:
    """Imports modules, whose classes checkpoints may name from then on."""
    from ..images._settings import allow_module  # here, as it imports torch

    if os.getcwd() not in sys.path and "" not in sys.path:  # of a script that is run by its path
        sys.path.append(os.getcwd())
    for name in names.split(","):
        is_module = all(map(str.isidentifier, name.split(".")))
        require(is_module, "--import", names, "a module, as my_package.my_module, or several: a,b")
        import_module(name)
        allow_module(name)
    return names


class _OnceLoader(yaml.SafeLoader):
    """Refuses a key that is given twice, of which YAML's readers keep the last in silence."""

    def compose_mapping_node(self, anchor: dict[object, yaml.Node]) -> yaml.MappingNode:
        """Composes a mapping; ``anchor``, a text or None, has the type of PyYAML's stubs."""
        mapping = super().compose_mapping_node(anchor)
        keys = [str(key.value) for key, _ in mapping.value]
        if twice := [key for key in keys if keys.count(key) > 1]:
            line = mapping.start_mark.line + 1
            raise yaml.YAMLError(f"'{twice[0]}' is given twice in the mapping of line {line}")
        return mapping


class _Dumper(yaml.SafeDumper):
    """Quotes text that is a number to jsonargparse, though not to PyYAML, such as 1e2."""

    yaml_implicit_resolvers = {
        first: [*known, ("tag:yaml.org,2002:float", _NUMBER)]
        for first, known in yaml.SafeDumper.yaml_implicit_resolvers.items()
    }


def to_yaml(values: object, in_braces: bool = False) -> str:
    """Writes YAML that :func:`read_yaml` and jsonargparse read as the same values."""
    return yaml.dump(
        values,
        Dumper=_Dumper,
        default_flow_style=in_braces,
        allow_unicode=not in_braces,
        sort_keys=False,
    )


def read_value(text: str) -> object:
    """Reads an option's value; what YAML takes for a comment, such as ``#1``, is text."""
    value: object = _load(text)
    return text if value is None and text.strip().lower() not in _NULLS else value


def read_yaml(text: str, name: str) -> object:
    """Reads YAML, each of whose keys is given once; ``name`` says in messages where it is from."""
    try:
        content: object = _load(text)
        yaml.compose(text, _OnceLoader)
    except yaml.YAMLError as error:
        raise UserError(f"{name}: {' '.join(str(error).split())}") from error
    return content
