"""The template, which people own, imports only the public names of ``lightkeeper``, which an upgrade keeps."""

import ast
import json
from pathlib import Path

import pytest
from IPython.core import inputtransformer2

ROOT = Path(__file__).parents[3]
FOLDERS = [ROOT / name for name in ("project", "examples", "notebooks", "scripts")]
FILES = [
    path
    for folder in FOLDERS
    for path in sorted(folder.rglob("*"))
    if path.suffix in (".py", ".ipynb") and "tests" not in path.parts[-3:]
]
FACES = {"exact", "images", "cli"}


def source(path: Path) -> str:
    """The Python of a file, of a notebook as IPython translates its magics."""
    if path.suffix == ".py":
        return path.read_text()
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    translate = inputtransformer2.TransformerManager().transform_cell
    return "\n".join(translate("".join(cell["source"])) for cell in cells)


def modules(text: str) -> set[str]:
    """The modules that a source imports names of, or imports."""
    names = set[str]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and not node.level:
            names.add(str(node.module))
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_file_imports_only_the_public_names_of_the_library(path):
    names = {name for name in modules(source(path)) if name.partition(".")[0] == "lightkeeper"}
    allowed = {"lightkeeper", *(f"lightkeeper.{face}" for face in FACES)}
    assert names <= allowed, f"take these names from lightkeeper.{{{','.join(sorted(FACES))}}}"
