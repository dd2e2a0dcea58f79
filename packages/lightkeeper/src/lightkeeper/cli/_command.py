"""The LightningCLI of commands that take data, model and trainer."""

import shlex
import sys
import textwrap
from argparse import Action
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any, ClassVar

import yaml
from jsonargparse import Namespace, set_dumper, set_loader
from jsonargparse.typing import restricted_number_type
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI

from ..exact._errors import LINES, UserError, note, printable, require
from ._classes import ClassParser, candidates, class_parser
from ._command_line import MODEL_BASES, TRAINER_BASES, Bases, CommandLine
from ._parser import full_name, name_of, read_value, to_yaml
from ._trainer import ExactTrainer
from ._upstream import import_path, options_of

FOLLOWS = {
    "model.class_names": "data.class_names",
    "model.preprocessing": "data.preprocessing",
    "data.seed": "seed_everything",
}
"""Options that follow from others."""

_Seed: Any = restricted_number_type("Seed", int, [(">=", 0), ("<=", 2**32 - 1)])
"""What NumPy takes."""


class Command(LightningCLI):
    """Parses the options of a command, and builds its data, model and trainer."""

    module: str
    """The module that is run."""
    description: str
    """One sentence for ``--help``."""
    examples: Sequence[str]
    """Command lines for ``--help``."""
    help_texts: Mapping[str, str] = {}
    """Lightning's options that ``--help`` shows, by their names, and what help says of them."""
    hidden_options: Sequence[str] = ()
    """Options of the data that ``--help`` leaves out, without ``--data.``."""
    build_model: Callable[..., LightningModule]
    """The base class of models, or a function of options that returns a model."""
    data_class: type[LightningDataModule]
    """The base class of data modules."""
    classes: Mapping[str, type] = {}
    """The classes of ``data`` and ``model`` if none is named."""
    defaults: Mapping[str, object]
    """Defaults of other options, such as ``trainer.max_epochs`` and ``monitor``."""
    path_classes: ClassVar[Mapping[str, type]]
    """The data modules for ``--data PATH``: ``root`` of a folder, ``file`` of a file, ``hf`` of
    hf:NAME. ``--help`` shows the first one's options."""

    config = Namespace()  # type: ignore[no-untyped-call]  # until it is parsed
    given: Set[str]
    """The names of the options that are given, also by configs."""

    def __init__(self, args: ArgsType = None) -> None:
        program = f"python -m {self.module}"
        examples = ["examples:", *self.examples, "", f"All options: {program} --help-all"]
        self.bases: Bases = {"data": self.data_class, **TRAINER_BASES}
        if isinstance(self.build_model, type):
            self.bases = {"model": self.build_model, **MODEL_BASES, **self.bases}
        with self.options_in_full():
            super().__init__(
                self.build_model,
                self.data_class,
                save_config_callback=None,
                trainer_class=ExactTrainer,
                parser_class=ClassParser,
                parser_kwargs={
                    "prog": program,
                    "description": self.description,
                    "epilog": "\n  ".join(examples),
                },
                subclass_mode_data=True,
                subclass_mode_model=isinstance(self.build_model, type),
                args=args,
                run=False,
                auto_configure_optimizers=False,
                load_from_checkpoint_support=False,
            )

    @contextmanager
    def options_in_full(self) -> Iterator[None]:
        """Names the option of an error as this command does: ``--data.root`` for ``root``."""
        try:
            yield
        except UserError as error:
            names = [full_name(name) for name in vars(self.config.as_flat())]
            same = [name for name in names if f".{name}".endswith(f".{error.option}")]
            if same:
                error.option = f"--{min(same, key=len)}"
            raise

    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds the seed: a number, where Lightning's may be true, for another one each time."""
        text = "The random seed."
        parser.add_argument("--seed_everything", type=_Seed, default=0, help=text)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Links the seed of the data to the command's."""
        parser.link_arguments("seed_everything", "data.init_args.seed")

    def default_classes(self, line: CommandLine) -> Mapping[str, type]:
        """Returns the classes of ``data`` and ``model`` if none is named."""
        return self.classes

    def default_arguments(self, cls: type) -> Mapping[str, object]:
        """Returns arguments of a class that differ from its own defaults."""
        return {}

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parses a command line in whatever order it names configs, classes and arguments."""
        assert isinstance(parser, ClassParser)
        parser.follows = FOLLOWS
        set_dumper("yaml", to_yaml)
        set_loader("yaml", read_value, (yaml.YAMLError,))
        for name in self.defaults:
            if name.partition(".")[0] in self.bases:  # the class that is chosen later has them
                raise UserError(
                    f"defaults of {type(self).__name__}: '{name}' is no option of the command's own;"
                    " name the class in classes, and return its arguments from default_arguments"
                )
        parser.set_defaults(dict(self.defaults))  # also of options that a subclass has added
        takes_none = [option for option in options_of(parser) if option.nargs == 0]
        switches = {name for option in takes_none for name in option.option_strings}
        line = CommandLine(sys.argv[1:] if args is None else map(str, args), switches)
        self.command = shlex.join([*str(parser.prog).split(), *line.words])
        named = line.take_classes(self.bases, self.path_classes)
        self.given = line.names | named.keys()
        classes = {**self.default_classes(line), **named}
        helps = {"-h": self.short_help, "--help": self.short_help, "--help-all": self.full_help}
        for word in helps.keys() & {*line.words}:
            sys.stdout.write(helps[word](parser))
            parser.exit()
        for name in self.given & FOLLOWS.keys():
            raise UserError(f"--{name} cannot be given: it follows from {FOLLOWS[name]}")
        parser.set_defaults(self._specs(classes))
        configs = [f"--config={to_yaml(config, in_braces=True)}" for config in line.configs]
        self.config = parser.parse_args([*configs, *line.flags])
        trainer = self.config.trainer
        if trainer.max_epochs and "trainer.max_epochs" not in self.given:  # our default gives way
            is_limited = trainer.max_steps != -1 or trainer.max_time
            require(
                is_limited or not trainer.min_steps,
                "--trainer.min_steps",
                trainer.min_steps,
                f"given with --trainer.max_epochs, which is {trainer.max_epochs}, or max_steps",
            )
            least = max(trainer.max_epochs, trainer.min_epochs or 1)
            trainer.max_epochs = -1 if is_limited else least

    def _specs(self, classes: Mapping[str, type]) -> dict[str, Any]:
        """Returns classes and their arguments, as jsonargparse has them."""
        specs: dict[str, Any] = {}
        for key, cls in classes.items():
            path = import_path(cls)  # as config.yaml has it
            specs[key] = {"class_path": path, "init_args": dict(self.default_arguments(cls))}
        for key in specs.keys() & MODEL_BASES.keys():
            specs["model"]["init_args"][key.removeprefix("model.")] = specs.pop(key)
        return specs

    def short_help(self, parser: ClassParser) -> str:
        """Returns the text of ``--help``: the options that most people need."""
        library = __name__.partition(".")[0]
        modules = [cls for cls in candidates(self.data_class) if library not in cls.__module__]
        names = ", ".join(cls.__name__ for cls in modules)
        titles = {
            "": "command",
            "trainer": "trainer, the options used most",
            "callbacks": "callbacks; false switches one off",
            "data": textwrap.fill(
                f"data; --data takes a folder, a table, hf:NAME, or {names}", 100
            ),
            "model": "model; --model takes a class of your own",
        }
        sections: dict[str, list[Action]] = {title: [] for title in titles.values()}
        options = options_of(parser)
        options += options_of(class_parser(self.path_classes["root"], "data"))
        if "model" in self.classes:
            options += options_of(class_parser(self.classes["model"], "model"))
        hidden = {*titles, "model.ckpt_path", *FOLLOWS}
        hidden |= {f"data.{name}" for name in self.hidden_options}
        for option in options:
            name = name_of(option).removeprefix("--")
            group = name.rpartition(".")[0].partition(".")[0]
            option.help = self.help_texts.get(name, option.help)
            is_rare = str(option.help).startswith("Advanced:") or name.endswith(".help")
            if group == "trainer":
                is_rare = name not in self.help_texts
            # other groups are links, such as "checkpoint --> model"
            if group in titles and name not in hidden and not is_rare:
                sections[titles[group]].append(option)
        return parser.format_sections(sections)

    def full_help(self, parser: ClassParser) -> str:
        """Returns the text of ``--help-all``: all options, also of data modules and models."""
        for option in options_of(parser):
            option.help = self.help_texts.get(name_of(option).removeprefix("--"), option.help)
        text = LightningArgumentParser.format_help(parser)
        for key in sorted(self.bases.keys() & {"data", "model"}):
            for cls in candidates(self.bases[key]):
                arguments = class_parser(cls, key).format_help().strip()
                text += f"\n--{key} {cls.__name__}: {arguments}\n"
        return text.replace("Advanced: ", "")

    def say(self, text: str) -> None:
        """Prints a result; the first process alone has results."""
        print(printable(text, keep=LINES), flush=True)

    def note(self, text: str) -> None:
        """Prints on standard error, once, what the command is doing."""
        if self.trainer.is_global_zero:
            note(text)
