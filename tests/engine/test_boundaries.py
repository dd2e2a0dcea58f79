"""Arrows between the library's parts, its public names, and private names of other libraries."""

import ast
import doctest
import hashlib
import inspect
import re
import shutil
import sys
from functools import reduce
from importlib import import_module
from importlib.util import resolve_name
from itertools import chain
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import lightkeeper
import pytest
from lightkeeper import cli, exact, images
from lightkeeper.exact._upstream import PRIVATE_NAMES

from tests.conftest import ROOT
from tests.distributed.processes import succeed

LIBRARY = Path(str(lightkeeper.__file__)).parent
FILES = sorted(LIBRARY.rglob("*.py"))
PACKAGE = "project"
YOURS = sorted((ROOT / PACKAGE).rglob("*.py"))
FACES: dict[str, Any] = {"exact": exact, "images": images, "cli": cli}
ORDER = [*FACES]
"""Each part may import those before it."""


def imported(path: Path, root: Path = LIBRARY.parent) -> set[str]:
    """The modules and names that a file below a root imports, relative ones in full."""
    package = ".".join(path.relative_to(root).parent.parts)
    names = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            module = resolve_name("." * node.level + (node.module or ""), package)
            names |= {f"{module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(LIBRARY).as_posix())
def test_imports_follow_the_order_of_the_parts(path):
    part = path.relative_to(LIBRARY).parts[0]
    allowed = ORDER[: ORDER.index(part) + 1] if part in ORDER else []
    for name in imported(path):
        package, _, rest = name.partition(".")
        if package == "lightkeeper" and rest.partition(".")[0] in ORDER:
            assert rest.partition(".")[0] in allowed, name


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(LIBRARY).as_posix())
def test_the_library_imports_nothing_of_yours_and_does_not_name_the_package(path):
    assert [name for name in imported(path) if name.partition(".")[0] == PACKAGE] == []
    named = rf".*(?:\b{PACKAGE}[./]\w|\b{PACKAGE}/|-m {PACKAGE}\b|[\"'`]{PACKAGE}[\"'`]).*"
    assert re.findall(named, path.read_text()) == []


def test_the_librarys_tests_pass_without_yours(tmp_path):
    kept = ["tests/engine", "tests/distributed/processes.py"]
    for place in (*kept, "tests/__init__.py", "tests/distributed/__init__.py"):
        copy = tmp_path / place
        copy.parent.mkdir(parents=True, exist_ok=True)
        copied = shutil.copytree if (ROOT / place).is_dir() else shutil.copy
        copied(ROOT / place, copy)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / PACKAGE).mkdir()
    (tmp_path / PACKAGE / "__init__.py").write_text("raise ImportError\n")
    fast = ["-k", "draw_alike or mean_gradient", "tests/engine/run", "tests/engine/training"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *fast]
    assert "[100%]" in succeed(command, tmp_path, PYTHONPATH=str(tmp_path)).out


def test_yours_comes_in_by_the_faces():
    names = set[str]()
    for path in YOURS:
        names |= {name for name in imported(path, ROOT) if name.startswith("lightkeeper")}
    public = {
        f"lightkeeper.{part}.{name}" for part, face in FACES.items() for name in face._MODULES
    }
    assert names <= public
    assert len(names) <= 18


@pytest.mark.parametrize("part", FACES)
def test_each_public_name_is_documented_and_its_example_runs(part):
    face = FACES[part]
    names = {name: getattr(face, name) for name in face._MODULES}
    assert all(value.__doc__ for value in names.values())
    results = doctest.testmod(face, extraglobs=names, optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
    assert results.attempted > results.failed == 0


def test_there_are_few_public_names():
    assert sum(len(face._MODULES) for face in FACES.values()) <= 40


@pytest.mark.parametrize("place", PRIVATE_NAMES)
def test_a_private_name_is_what_it_was(place):
    module, name = place.split(":")
    found = reduce(getattr, name.split("."), import_module(module))
    source = inspect.getsource(found.fset if isinstance(found, property) else found)
    digest = hashlib.blake2b(source.encode()).hexdigest()[:12]
    message = f"read it, see that _upstream.py still does what it says, and write {digest} there"
    assert digest == PRIVATE_NAMES[place], message


OWN = ("self", "cls", "super()")
THEIRS = {"torch", "torchvision", "torchmetrics", "lightning", "jsonargparse"}
# but not os._exit, and what is public of named tuples and of IPython
PRIVATE = re.compile(r"\._(?!_|exit$|replace$|asdict$|make$|fields$|render_traceback_$)\w+$")
IMPLICIT = re.compile(  # public by spelling alone: nobody documents what they hold
    r"\b(?:fit_loop\.(?!setup_data)\w+|\w*epoch_loop|(?:batch|epoch|optim)_progress|restarted_\w+|found_inf"
    r"|_schedule_phases)\b|\"loops\"|def state_dict\(self\).*:\n.*\n\s+return \{\}"
)


@pytest.mark.parametrize("path", [*FILES, *YOURS], ids=lambda path: "/".join(path.parts[-2:]))
def test_private_names_of_libraries_stand_in_upstream(path):
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    taken = {ast.unparse(node) for node in attributes if ast.unparse(node.value) not in OWN}
    private = [name for name in taken if PRIVATE.search(name)]
    private += [
        name
        for name in imported(path, LIBRARY.parent if path in FILES else ROOT)
        if name.partition(".")[0] in THEIRS and re.search(r"\._(?!_)", name)
    ]
    private += IMPLICIT.findall(path.read_text())
    assert path.name == "_upstream.py" or not private


def private_names(cls: type) -> set[str]:
    """The private names that a class defines, or uses of itself, by its source."""
    own = r"(?:def |self\.|cls\.|super\(\)\.)(_(?!_)\w+)"
    return set(re.findall(own, inspect.getsource(cls)))


def test_no_class_shares_a_private_name_with_a_base_of_theirs():
    packages = {"lightkeeper": LIBRARY, PACKAGE: ROOT / PACKAGE}
    for module in chain(*(walk_packages([str(packages[name])], f"{name}.") for name in packages)):
        for cls in vars(import_module(module.name)).values():
            if inspect.isclass(cls) and cls.__module__ == module.name:
                bases = [base for base in cls.__mro__ if base.__module__.split(".")[0] in THEIRS]
                theirs = {name for base in bases for name in private_names(base)}
                assert not private_names(cls) & theirs, cls
