"""What was given to one option that takes a class, all configs and flags taken together."""

import os
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lightning.pytorch.utilities import rank_zero_only

from project.data import FolderDataModule

from ..errors import UserError
from ..run.progress import note
from .classes import accepted, class_path, find_class, no_such_option
from .config_file import Config

_FOLLOWS = {
    "model.class_names": "data.class_names",
    "model.preprocessing": "data.preprocessing",
    "data.seed": "seed_everything",
}
_OPTIONS = (dict, "options, as in 'NAME: VALUE' without a dash")
_SPEC = {"class_path": (str, "the name of a class"), "init_args": _OPTIONS, "dict_kwargs": _OPTIONS}


class Given(NamedTuple):
    """A value for an argument of a class.

    Attributes:
        value: The value.
        place: The file and line that it is from.
        cls: The class that was named by then.
    """

    value: Any
    place: str
    cls: type | None

    def accepted(self) -> dict[str, Any]:
        """What that class accepts, with the defaults."""
        return accepted(self.cls) if self.cls is not None else {}


@dataclass
class ClassOption:
    """What was given to one option that takes a class.

    Attributes:
        key: The option, without dashes.
        name: The class, as it was named, or the default.
        arguments: What configs give to it.
        is_given: Whether there is anything but the default.
        default: The class by default, if there is one.
        place: The file and line of what was given last; empty where that was a flag.
        other: What was given in place of a class, as in ``--trainer.logger false``.
    """

    key: str
    name: str | None = None
    arguments: dict[str, Given] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    is_given: bool = False
    other: Any = None
    default: str | None = None
    place: str = ""

    def __post_init__(self) -> None:
        self.default = self.name

    def take(self, value: Any, config: Config, *path: str) -> None:
        """Adds what a config says.

        Args:
            value: A class's name, its specification, arguments of it, or something else that the option takes.
            config: The config.
            path: Where in it.

        Raises:
            UserError: A specification has something else where a name or arguments belong.
        """
        self.is_given, self.place = True, config.place(*path) if config.lines else ""
        if isinstance(value, dict):
            spec: dict[str, Any] = value if value.keys() <= _SPEC.keys() else {"init_args": value}
            self._require_well_formed(spec, config, path)
            self.name = spec.get("class_path", self.name)
            self.other = None
            cls = find_class(self.key, self.name)
            if "class_path" in spec:
                self._leave_behind(cls)
            inner = [*path, "init_args"] if spec is value else [*path]
            for key, argument in (spec.get("init_args") or {}).items():
                name = key.removesuffix("+")  # with it, the value adds to what earlier configs give
                found = argument if key == name else self._with_earlier(name, argument)
                self.arguments[name] = Given(found, config.place(*inner, name), cls)
            self.extra |= spec.get("dict_kwargs") or {}
        elif isinstance(value, str):
            self.name, self.other = value, None
            self._leave_behind(self.cls())
            if self.key == "data" and is_folder(value):
                self.name = "project.data.FolderDataModule"
                self.arguments["root"] = Given(value, config.place(*path), FolderDataModule)
        else:
            self.name, self.other = None, value
            self.arguments.clear()
            self.extra.clear()

    def cls(self) -> type | None:
        """The class that is named, where there is one."""
        return find_class(self.key, self.name)

    def is_replaced(self) -> bool:
        """Whether another class than the default is named, where there is one."""
        return self.default is not None and self.cls() not in (None, find_class(self.key, self.default))

    def spec(self) -> dict[str, str]:
        """The class alone, as a parser's default."""
        cls = self.cls()
        return {"class_path": class_path(cls, self.name or "") if cls is not None else self.name or ""}

    def hold(self, inner: "ClassOption") -> None:
        """Takes what an option of the class settled on; that there is none says nothing to a class without it."""
        name, value, cls = inner.key.rpartition(".")[2], inner.settle(), self.cls()
        if value is None and cls is not None and name not in accepted(cls):
            return
        self.arguments[name] = Given(value, inner.place, cls)
        self.is_given = True

    def settle(self) -> Any:
        """What the option is, all configs taken together.

        Raises:
            UserError: A config gives an argument that the class does not accept.
        """
        if self.name is None:
            return {"init_args": self._values()} if self.arguments else self.other
        cls = self.cls()
        if cls is not None:
            for name, given in list(self.arguments.items()):
                require_free(f"{self.key}.{name}", given.place)
                if name not in accepted(cls):
                    self._drop_default(cls, name, given)
        elif not (self.arguments or self.extra):
            return self.name  # which the parser refuses, or knows as something else
        spec = {**self.spec(), "init_args": self._values(), "dict_kwargs": self.extra}
        return {name: value for name, value in spec.items() if value}

    def _require_well_formed(self, spec: dict[str, Any], config: Config, path: tuple[str, ...]) -> None:
        for part, value in spec.items():
            kind, wanted = _SPEC[part]
            if value is not None and not isinstance(value, kind):
                raise UserError(f"{config.place(*path, part)}: --{self.key}: {part} must be {wanted}, got '{value}'")

    def _leave_behind(self, cls: type | None) -> None:
        """Says what earlier configs gave to another class that a later one replaces, and leaves it out."""
        if cls is None or not self.place:  # a flag replaces no more than the name
            return
        of_others = {name: given for name, given in self.arguments.items() if given.cls not in (None, cls)}
        gone = {
            name: given for name, given in of_others.items() if name not in accepted(cls) and name in given.accepted()
        }
        for name, given in gone.items():
            del self.arguments[name]
            if given.accepted()[name] != given.value:
                rank_zero_only(note)(
                    f"{self.place}: {cls.__name__} has no option '{name}', so {given.place} is left out"
                )

    def _with_earlier(self, name: str, value: Any) -> list[Any]:
        before = self.arguments.get(name)
        return [*_listed(before.value if before else None), *_listed(value)]

    def _values(self) -> dict[str, Any]:
        return {name: given.value for name, given in self.arguments.items()}

    def _drop_default(self, cls: type, name: str, given: Given) -> None:
        """Drops what a saved config holds of the old class's defaults; anything else was meant."""
        before = given.accepted() if given.cls is not cls else {}
        if name not in before or before[name] != given.value:
            place = f"{given.place}: " if given.place else ""
            raise UserError(f"{place}{no_such_option(self.key, cls, name)}")
        del self.arguments[name]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def require_free(name: str, place: str = "") -> None:
    """Refuses an option that follows from another, which a parser would take and then override.

    Args:
        name: The option, without dashes.
        place: The file and line that it is from.

    Raises:
        UserError: It does.
    """
    if name in _FOLLOWS:
        raise UserError(f"{place}{': ' * bool(place)}--{name} cannot be given: it follows from {_FOLLOWS[name]}")


def is_folder(data: str | None) -> bool:
    """Whether ``--data`` names a folder rather than a class."""
    return data is not None and os.path.isdir(os.path.expanduser(data)) and find_class("data", data) is None
