"""The pages of the docs: links and files that they name are there, and their site is built."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_docs import PAGES, ROOT


def test_every_link_leads_somewhere():
    for page in PAGES:
        for link in re.findall(
            r"\]\((?!http|\.\./\.\./)([^)#]+)", page.read_text()
        ):  # the latter are GitHub's own pages
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_every_file_that_a_page_names_is_there():
    folders = [ROOT, ROOT / "project" / "engine", ROOT / "tests"]
    for page in PAGES:
        for name in re.findall(r"`([\w/]+/\w+\.(?:py|yaml|md))`", page.read_text()):
            assert any((folder / name).exists() for folder in folders), f"{page.name} names {name}"


@pytest.mark.slow
def test_the_site_is_built_without_a_broken_link_or_reference(tmp_path):
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    (tmp_path / "project").symlink_to(ROOT / "project")
    build = [str(Path(sys.executable).with_name("zensical")), "build", "--strict"]
    done = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "freeze" in (tmp_path / "site" / "reference" / "index.html").read_text()  # an option, from a docstring
