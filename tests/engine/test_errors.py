"""Texts for the person at the terminal."""

import pytest

from project.engine.errors import end_with_error, listed


@pytest.mark.parametrize(
    ("names", "options", "text"),
    [
        ("", [3], "none"),
        ("a", [3], "a"),
        ("abc", [3], "a, b and c"),
        ("abcd", [3], "a, b, c and 1 more"),
        ("abc", [], "a, b and c"),
        (range(2000), [2], "0, 1 and 1,998 more"),
        (["a\x1b[2J", "b\n"], [3], "a\\x1b[2J and b\\n"),
        ("abc", [None, "or"], "a, b or c"),
        ("abc", [2, "or"], "a, b or 1 more"),
    ],
)
def test_a_list_of_names_is_joined_and_shortened(names, options, text):
    assert listed(names, *options) == text


def test_an_error_is_said_whatever_the_environment_calls_the_process(monkeypatch, capsys):
    monkeypatch.setenv("LOCAL_RANK", "first")
    with pytest.raises(SystemExit, match="2"):
        end_with_error("no")
    assert capsys.readouterr().err == "error: no\n"
