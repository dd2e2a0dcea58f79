"""The private names of others that we touch are there, unchanged, and used in one module alone."""

import ast
import hashlib
import inspect
import textwrap
from functools import reduce
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from pkgutil import walk_packages

import pytest

from project.engine.upstream import PRIVATE_NAMES

PROJECT = Path(__file__).parents[2] / "project"


@pytest.mark.parametrize("place", PRIVATE_NAMES)
def test_a_private_name_is_what_it_was(place):
    module, name = place.split(":")
    package = module.partition(".")[0]
    now = f"{package} {version(package)}"
    try:
        found = reduce(getattr, name.split("."), import_module(module))
    except (ImportError, AttributeError) as error:
        pytest.fail(f"{now} has no {place} ({error}); see project.engine.upstream for what it is needed")
    source = inspect.getsource(found.fset if isinstance(found, property) else found)
    digest = hashlib.blake2b(source.encode()).hexdigest()[:12]
    assert digest == PRIVATE_NAMES[place], (
        f"{now} has changed {place}; read it, see that project.engine.upstream still does what it says, and write {digest} there"
    )


def private_attributes(path: Path) -> set[str]:
    """Attributes with a leading underscore of anything but ``self``, ``cls`` and ``super()``."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            owner = ast.unparse(node.value)
            if owner not in ("self", "cls", "super()") and (owner, node.attr) != ("os", "_exit"):
                found.add(f"{path.relative_to(PROJECT)}: {owner}.{node.attr}")
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None) or ""
            parts = {part for name in (module, *(alias.name for alias in node.names)) for part in name.split(".")}
            private = {part for part in parts - {"__main__", "__future__"} if part.startswith("_")}
            found |= {f"{path.relative_to(PROJECT)}: import {name}" for name in private}
    return found


THEIRS = {"torch", "torchvision", "torchmetrics", "lightning", "jsonargparse"}
PUBLIC = ("._replace", "._asdict", "._make", "._fields", "._render_traceback_")  # of named tuples, and of IPython


def test_no_other_module_touches_a_private_name():
    modules = [path for path in PROJECT.rglob("*.py") if path.name != "upstream.py"]
    found = set().union(*map(private_attributes, modules))
    assert not {line for line in found if not line.endswith(PUBLIC)}


def own_private_names(one: type) -> set[str]:
    """The private names that a class takes from itself, or gives itself, by its source."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(one)))
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    names = {node.attr for node in attributes if ast.unparse(node.value) in ("self", "cls", "super()")}
    names |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    return {name for name in names if name.startswith("_") and not name.endswith("__")}


def test_no_class_shares_a_private_name_with_a_base_of_theirs():
    modules = [import_module(found.name) for found in walk_packages([str(PROJECT)], f"{PROJECT.name}.")]
    found = {one for module in modules for one in vars(module).values() if inspect.isclass(one)}
    classes = {one for one in found if one.__module__.partition(".")[0] == PROJECT.name}
    bases = {base for one in classes for base in one.__mro__ if base.__module__.partition(".")[0] in THEIRS}
    ours, theirs = ({one: own_private_names(one) for one in group} for group in (classes, bases))
    pairs = [(one, base) for one in classes for base in one.__mro__ if base in theirs]
    assert not [(one, base, ours[one] & theirs[base]) for one, base in pairs if ours[one] & theirs[base]]
