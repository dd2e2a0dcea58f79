"""Renames the package, everywhere: ``make rename NAME=flowernet``, which is ``python scripts/rename.py flowernet``.

Imports, commands, paths, configs, pages, tests and notebooks follow. Checkpoints do not name the package, so those made
before still load. ``make rename`` formats the code afterwards, as imports may sort in another order.
"""

import keyword
import os
import re
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOT_OURS = {".git", ".venv", "data", "packages", "runs", "site"}
# the last is that of Makefile, Dockerfile and .ci/run
SUFFIXES = {".py", ".sh", ".md", ".toml", ".yaml", ".yml", ".ipynb", ".lock", ".txt", ""}


def usages(name: str) -> re.Pattern[str]:
    """Builds the pattern of a package's name where code, commands and paths use it, not the English word."""
    return re.compile(
        rf"(?<=\bfrom ){name}\b|(?<=\bimport ){name}\b"  # imports
        rf"|(?<![\w\[./-]){name}(?=\\?\.[a-z_*])"  # project.fit, but not the tables [project.…] of pyproject.toml
        rf"|(?<![\w.-]){name}(?=/)"  # project/fit.py
        rf"|(?<=[\"']){name}(?=[*.]?[\"'])|(?<=python -m ){name}\b"  # "project", commands
        rf"|(?<=--tag ){name}\b|\b{name}(?= python -m)|(?<=WORKDIR /){name}\b"  # the Dockerfile
        rf"|\b{name}(?= \(pyproject\.toml\))"  # requirements.lock
    )


def files(root: Path) -> Iterator[Path]:
    """Finds all text files of the repository, but none of caches and virtual environments."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if _is_ours(Path(folder, name), root))
        for path in (Path(folder, name) for name in sorted(names)):
            if path.suffix in SUFFIXES and _is_ours(path, root):
                yield path


def _is_ours(path: Path, root: Path) -> bool:
    made = path.name.endswith((".egg-info", "_cache")) or (path / "pyvenv.cfg").exists()
    return not made and not (path.parent == root and path.name in NOT_OURS)


def current_name(root: Path) -> str:
    """Reads the package's name from ``pyproject.toml``."""
    found = re.search(r'^name = "(\w+)"$', (root / "pyproject.toml").read_text(), re.M)
    if found is None:
        sys.exit("error: pyproject.toml has no line 'name = \"...\"'")
    return found[1]


def refusal(root: Path, name: str) -> str | None:
    """Returns the reason that the package cannot have that name, if there is one."""
    if not name.isidentifier() or keyword.iskeyword(name) or not name.islower():
        return "it must be a module's name: lower-case letters, digits and _"
    if (root / name).exists():
        return f"the folder {name}/ is there already"
    if name in sys.stdlib_module_names or find_spec(name) is not None:
        return f"there is a module {name} already, which would be imported in its place"
    return None


def rename(root: Path, name: str) -> int:
    """Renames the package of a repository; returns the number of files that have changed."""
    before, changed = current_name(root), 0
    pattern = usages(before)
    for path in files(root):
        text = path.read_text()
        if (renamed := pattern.sub(name, text)) != text:
            path.write_text(renamed)
            changed += 1
    (root / before).rename(root / name)
    shutil.rmtree(
        root / f"{before}.egg-info", ignore_errors=True
    )  # of the installed package, which has the new name
    return changed


def main() -> None:
    """Runs the command."""
    if len(sys.argv) != 2:
        sys.exit("error: give the new name: make rename NAME=flowernet")
    name = sys.argv[1]
    if reason := refusal(ROOT, name):
        sys.exit(f"error: NAME={name}: {reason}")
    changed = rename(ROOT, name)
    print(f"the package is called {name} now ({changed} files changed)")


if __name__ == "__main__":
    main()
