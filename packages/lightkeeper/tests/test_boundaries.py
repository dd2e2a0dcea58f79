"""Arrows between the library's parts, its public names, and private names of other libraries."""

import ast
import doctest
import hashlib
import inspect
import re
import sys
import tomllib
from collections.abc import Iterable
from functools import reduce
from importlib import import_module
from importlib.metadata import packages_distributions, requires, version
from importlib.util import resolve_name
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import lightkeeper
import pytest
from lightkeeper import cli, exact, images
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

LIBRARY = Path(str(lightkeeper.__file__)).parent
ROOT = LIBRARY.parents[3]
FILES = sorted(LIBRARY.rglob("*.py"))
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


def installed_with(text: str, known: set[str]) -> set[str]:
    """The names of a requirement's package, and of what that requires."""
    required = Requirement(text)
    name = canonicalize_name(required.name)
    if name not in known and (required.marker is None or required.marker.evaluate({"extra": ""})):
        known.add(name)
        for part in requires(name) or ():
            installed_with(part, known)
    return known


def require_installed(paths: Iterable[Path], requirements: Iterable[str], own: str = "") -> None:
    """Requires that what modules import as they are imported is installed with requirements."""
    given: set[str] = set()
    for text in requirements:
        installed_with(text, given)
    distributions = packages_distributions()  # which takes long
    for path in paths:
        for node in ast.parse(path.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names.append(str(node.module))
            packages = {name.partition(".")[0] for name in names}
            for name in packages - {*sys.stdlib_module_names, own}:
                assert {*map(canonicalize_name, distributions[name])} & given, (path, name)


@pytest.mark.parametrize("part", ORDER)
def test_a_part_imports_what_the_extra_of_its_name_brings(part):
    about = tomllib.loads((LIBRARY.parents[1] / "pyproject.toml").read_text())["project"]
    extras = about["optional-dependencies"]
    parts = ORDER[: ORDER.index(part) + 1]
    brought = [text for name in parts for text in extras.get(name, about["dependencies"])]
    require_installed((LIBRARY / part).glob("*.py"), brought)


@pytest.mark.skipif(not (ROOT / "project").is_dir(), reason="the template is not here")
def test_the_template_imports_what_its_requirements_bring():
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    brought = [text for line in lines if (text := line.partition("#")[0].strip())]
    paths = {*(ROOT / "project").rglob("*.py")}
    # its command needs the extra compare
    require_installed(paths - {ROOT / "project/analysis/comparison.py"}, brought, "project")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(LIBRARY).as_posix())
def test_the_library_names_no_package_that_stands_on_it(path):
    assert re.findall(r".*(?:\bproject[./]\w|\bproject/|-m project\b).*", path.read_text()) == []


OUTSIDE = [path for path in FILES if "cli" not in path.parts]


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda path: path.relative_to(LIBRARY).as_posix())
def test_only_the_command_line_knows_the_names_of_its_options(path):
    """An error has the name of an argument, which is that of Python; docstrings are ``--help``."""
    assert not re.findall(r"(?<!``)--(?:data|model|trainer|callbacks)\.\w+", path.read_text())


@pytest.mark.parametrize("part", FACES)
def test_each_public_name_is_documented_and_its_example_runs(part):
    face = FACES[part]
    names = {name: getattr(face, name) for name in face._MODULES}
    assert all(value.__doc__ for value in names.values())
    results = doctest.testmod(face, extraglobs=names, optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
    assert results.attempted > results.failed == 0


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.stem != "__init__" and ">>>" in path.read_text()]
)
def test_the_examples_of_other_docstrings_run(path):
    name = ".".join(path.relative_to(LIBRARY.parent).with_suffix("").parts)
    results = doctest.testmod(import_module(name))
    assert results.attempted > results.failed == 0


@pytest.mark.parametrize("part", FACES)
def test_a_star_takes_and_tab_completion_lists_the_public_names(part):
    taken: dict[str, Any] = {}
    exec(f"from lightkeeper.{part} import *", taken)
    assert {*taken} - {"__builtins__"} == {*FACES[part]._MODULES} == {*dir(FACES[part])}


def test_there_are_few_public_names():
    assert sum(len(face._MODULES) for face in FACES.values()) <= 40


PRIVATE_NAMES: dict[str, str] = {}
for _path in LIBRARY.rglob("_upstream.py"):
    PRIVATE_NAMES |= import_module(f"lightkeeper.{_path.parent.name}._upstream").PRIVATE_NAMES
READ = {"torch": "2.14.1", "lightning": "2.6.6", "torchmetrics": "1.9.0", "jsonargparse": "4.53.0"}
"""The versions whose private names were read."""


@pytest.mark.parametrize("place", PRIVATE_NAMES)
def test_a_private_name_is_what_it_was(place):
    module, name = place.split(":")
    library = module.partition(".")[0]
    if Version(version(library)) < Version(READ[library]):
        pytest.skip(f"{library} is older than {READ[library]}: tests of behaviour speak for it")
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


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(LIBRARY).as_posix())
def test_private_names_of_libraries_stand_in_upstream(path):
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    taken = {ast.unparse(node) for node in attributes if ast.unparse(node.value) not in OWN}
    private = [name for name in taken if PRIVATE.search(name)]
    private += [
        name
        for name in imported(path)
        if name.partition(".")[0] in THEIRS and re.search(r"\._(?!_)", name)
    ]
    private += IMPLICIT.findall(path.read_text())
    assert path.name.startswith("_upstream") or not private


def private_names(cls: type) -> set[str]:
    """The private names that a class defines, or uses of itself, by its source."""
    own = r"(?:def |self\.|cls\.|super\(\)\.)(_(?!_)\w+)"
    return set(re.findall(own, inspect.getsource(cls)))


def test_no_class_shares_a_private_name_with_a_base_of_theirs():
    for module in walk_packages([str(LIBRARY)], "lightkeeper."):
        for cls in vars(import_module(module.name)).values():
            is_of_upstream = "._upstream" in module.name
            if inspect.isclass(cls) and cls.__module__ == module.name and not is_of_upstream:
                bases = [base for base in cls.__mro__ if base.__module__.split(".")[0] in THEIRS]
                theirs = {name for base in bases for name in private_names(base)}
                assert not private_names(cls) & theirs, cls
