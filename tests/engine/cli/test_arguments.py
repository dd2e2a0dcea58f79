"""What ``--import`` imports."""

import sys

import pytest

from project.engine.cli.arguments import import_named
from project.engine.errors import UserError


def test_several_modules_are_imported(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("own_nets", "own_data"):
        (tmp_path / f"{name}.py").write_text("")
    import_named("own_nets, own_data")
    assert {"own_nets", "own_data"} <= sys.modules.keys()
    with pytest.raises(UserError, match="'own_loss' cannot be imported from this folder"):
        import_named("own_nets,own_loss")
