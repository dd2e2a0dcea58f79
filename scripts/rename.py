"""Turns what ``copier`` has copied into a project of one's own: the task of ``copier.yml``.

It runs in the project's folder after ``copier copy``, and for each version that ``copier update`` renders. In an update, the
owner's package lies beside the newer template's ``project/``, which is moved into it; then ``copier`` applies the owner's
edits. A file that differs from the template's is its owner's, and stays as it is. Checkpoints do not name the package.
"""

import argparse
import keyword
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

TEMPLATE = Path(__file__).parents[1]
PACKAGE = "project"
# the last is that of Makefile and Dockerfile
SUFFIXES = {".py", ".sh", ".md", ".toml", ".yaml", ".yml", ".ipynb", ".txt", ""}
USAGES = re.compile(  # where code, commands and paths use the package's name, not the English word
    rf"(?<=\bfrom ){PACKAGE}\b|(?<=\bimport ){PACKAGE}\b"  # imports
    rf"|(?<![\w\[./-]){PACKAGE}(?=\\?\.[a-z_*])"  # project.fit, but no table [project.…] of TOML
    rf"|(?<![\w.-]){PACKAGE}(?=/)"  # project/fit.py
    rf"|(?<=[\"']){PACKAGE}(?=[*.]?[\"'])|(?<=python -m ){PACKAGE}\b"  # "project", commands
    # the Dockerfile
    rf"|(?<=--tag ){PACKAGE}\b|\b{PACKAGE}(?= python -m)|(?<=WORKDIR /){PACKAGE}\b"
)


def template_files() -> Iterator[str]:
    """Finds the files of the template that git knows."""
    command = ["git", "-C", str(TEMPLATE), "ls-files", "-z"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    yield from listed.split("\0")[:-1]


def refusal(name: str) -> str | None:
    """Returns the reason that the package cannot have that name, if there is one."""
    if keyword.iskeyword(name) or name in sys.stdlib_module_names:
        return f"{name} is a keyword or a module of Python"
    if name != PACKAGE and (TEMPLATE / name).exists():
        return f"the template has a folder {name}/"
    required = "requirements.txt", "pyproject.toml", "packages/lightkeeper/pyproject.toml"
    text = "".join((TEMPLATE / path).read_text() for path in required)
    if re.search(rf'^[ "]*{name}[\[<>=]', text, re.M):
        return f"the project needs a package {name}, which would not be imported"
    return None


def source(address: str, commit: str) -> str:
    """Returns what ``requirements.txt`` has of lightkeeper: the commit in a git repository."""
    address = re.sub(r"^gh:", "https://github.com/", address.removeprefix("git+"))
    address = re.sub(r"^gl:", "https://gitlab.com/", address)
    address = re.sub(r"^(git@[^:/]+):", r"ssh://\1/", address)
    if "://" not in address:
        path = Path(address).expanduser()
        if not path.is_absolute():
            sys.exit(f"error: '{address}' is no address: give a URL or an absolute path")
        known = ["git", "-C", str(path), "cat-file", "-e", f"{commit}^{{commit}}"]
        if path.is_dir() and subprocess.run(known, capture_output=True).returncode:
            sys.exit(  # copier commits such changes in a clone of its own, which it deletes
                f"error: '{address}' has changes or new files that no commit has, so lightkeeper"
                " could not be installed from it: commit or stash them (git stash"
                " --include-untracked), or copy from a clone of it"
            )
        address = path.as_uri().replace("///", "//localhost/")  # pip requires a host
    return f" @ git+{address}@{commit}#subdirectory=packages/lightkeeper"


def edits(options: argparse.Namespace) -> dict[str, list[tuple[str, str]]]:
    """Returns the expressions that are replaced, by the file that they stand in."""
    requirement, data = [], []
    if options.lightkeeper != "index":
        address = source(options.lightkeeper, options.commit)
        requirement = [(r"(?<=^lightkeeper\[images,cli\])[<>=.,\d]+", address)]
    if "downloads" not in options.keep.split(","):
        data = [(r".*\b(CIFAR10DataModule|FlowersDataModule)\b.*\n", "")]
    return {
        "requirements.txt": requirement,
        "pyproject.toml": [
            (r'^license = ".*"', f'license = "{options.licence}"'),
            (r'^version = ".*"', 'version = "0.1.0"'),
        ],
        "Dockerfile": [(r".*\bpackages\b.*\n", "")],
        "docs/kaggle_and_colab.md": [(r'"\./packages/\S+" ', "")],
        "project/data/__init__.py": data,
    }


def settle(root: Path, options: argparse.Namespace) -> list[Path]:
    """Renames, moves and edits the files that are the template's; returns those that have changed."""
    changed, replaced = [], edits(options)
    for path in template_files():
        here = root / path
        if not here.is_file() or here.read_bytes() != (TEMPLATE / path).read_bytes():
            continue
        target = root / re.sub(rf"^{PACKAGE}/", f"{options.name}/", path)
        target.parent.mkdir(parents=True, exist_ok=True)
        here.replace(target)
        if target.suffix in SUFFIXES:
            before = target.read_text()
            text = USAGES.sub(options.name, before)
            for pattern, replacement in replaced.get(path, []):
                text = re.sub(pattern, replacement, text, flags=re.M)
            if text != before:
                target.write_text(text)
                changed.append(target)
    for folder in sorted(root.glob(f"{PACKAGE}/**/"), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()
    return changed


def sort_and_wrap(files: list[Path]) -> None:
    """Formats modules and notebooks: another name is of another length, and imports sort in another order."""
    python = [str(path) for path in files if path.suffix in {".py", ".ipynb"}]
    for command in (["check", "--select=I", "--fix"], ["format"]):
        subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--quiet", "--no-cache", *python], check=True
        )


def main() -> None:
    """Runs the task."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    for answer in ("licence", "lightkeeper", "commit", "keep"):
        parser.add_argument(f"--{answer}", required=True)
    options = parser.parse_args()
    if reason := refusal(options.name):
        sys.exit(f"error: the package's name: {reason}")
    if find_spec("ruff") is None:
        sys.exit(
            "error: copier needs ruff beside it: `pip install copier ruff`, or `uvx --with ruff"
            " copier copy …`"
        )
    sort_and_wrap(settle(Path.cwd(), options))


if __name__ == "__main__":
    main()
