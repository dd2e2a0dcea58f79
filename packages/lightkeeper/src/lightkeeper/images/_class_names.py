"""Names of classes: each class has its own, and numbers in a table get theirs from a file."""

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path

from ..exact._errors import UserError, listed, printable
from ._scan import to_nfc
from ._sheet import Sheet, decoded

_DIGITS = r"\d{1,18}"
_NUMBER = re.compile(rf"({_DIGITS})(\.0+)?")
_BETWEEN = r"(?:[\s,:;|=]+|[.)]\s+)"
_NUMBERED_LINES = (
    re.compile(rf"(?P<number>{_DIGITS}){_BETWEEN}(?P<name>.+)"),
    re.compile(rf"(?P<name>.+?){_BETWEEN}(?P<number>{_DIGITS})"),
)
_ADVICE = "give each its own, as with class_names"


def require_class_names(names: Iterable[str]) -> list[str]:
    """Returns the names of classes in the order of their labels, if they are texts that differ.

    Raises:
        UserError: A name is no text, or two are equal, be it after Unicode has composed them.
    """
    names = [*names]
    for name in names:
        if not isinstance(name, str):
            raise UserError(f"the names of classes must be texts, got {name!r}")
    _require_different(dict(enumerate(names)), "the classes")
    return names


def _require_different(names: Mapping[int, str], what: str) -> None:
    labels = defaultdict[str, list[int]](list)
    for label, name in names.items():
        labels[to_nfc(name)].append(label)
    for name, same in labels.items():
        if len(same) > 1:
            raise UserError(
                f"{what} {listed(same, 5)} have one name, '{printable(name)}'; {_ADVICE}"
            )


def sort_classes(names: Iterable[str]) -> list[str]:
    """Sorts the names of classes: numbers by their value, if all are numbers."""
    names = sorted(names)
    are_numbers = all(re.fullmatch(r"-?\d+(\.\d+)?", name) for name in names)
    return sorted(names, key=float) if are_numbers else names


def names_of_numbers(
    sheets: Sequence[Sheet],
    columns: Sequence[str],
    folders: Iterable[Path],
    class_names: Sequence[str] = (),
) -> tuple[str, Mapping[str, str]]:
    """Finds names for the numbers in a column of labels, in ``classes.txt`` or a JSON file.

    With ``class_names``, which the user has given, a file must have these names; if there is no
    such file, they name the numbers in their order.

    Returns:
        Where the names are from, in a phrase for people to read, and a name for each label; none
        where labels are no numbers, or there are no names for them.

    Raises:
        UserError: It is not certain which number has which name, or two have one name.
    """
    rows = [row for sheet in sheets for row in sheet.rows.values() if len(columns) == 1]
    labels = {row[columns[0]] for row in rows if columns[0] in row}
    number_of = {label: int(match[1]) for label in labels if (match := _NUMBER.fullmatch(label))}
    if not labels or number_of.keys() < labels or labels <= {*class_names}:
        return "", {}
    numbers = sorted({*number_of.values()})
    tables = {sheet.file for sheet in sheets}
    files = [
        file
        for folder in folders
        for file in (*folder.glob("classes.txt"), *sorted(folder.glob("*.json")))
        if file.is_file() and file not in tables
    ]
    readings = {str(file): _names_in(file, {*numbers}) for file in files}
    names = {source: by_number for source, by_number in readings.items() if by_number}
    if class_names:
        names = _as_given(names, class_names, numbers)
    elif not names:
        _require_no_list(files, numbers)
    if not names:
        return f"no names for them in {listed(file.name for file in files)}" if files else "", {}
    if len({tuple(of[number] for number in numbers) for of in names.values()}) > 1:
        raise UserError(f"{listed(sorted(names))} name the classes differently; move one away")
    source, by_number = next(iter(names.items()))
    source = os.path.basename(source)
    _require_different({n: by_number[n] for n in numbers}, f"by {source}, the labels")
    return f"their names from {source}", {
        label: to_nfc(by_number[number]) for label, number in number_of.items()
    }


def _as_given(
    names: Mapping[str, Mapping[int, str]], class_names: Sequence[str], numbers: Sequence[int]
) -> dict[str, Mapping[int, str]]:
    """Keeps the files that have the names which the user has given; else takes these, in order."""
    known = {*map(to_nfc, class_names)}
    alike = {file: of for file, of in names.items() if {to_nfc(of[n]) for n in numbers} <= known}
    if alike or len(class_names) != len(numbers):
        return alike
    return {"class_names": dict(zip(numbers, class_names, strict=True))}


def _require_no_list(files: Iterable[Path], numbers: Sequence[int]) -> None:
    """Refuses a ``classes.txt`` that does not say for certain what it names."""
    for file in files:
        if file.suffix == ".txt":
            raise UserError(
                f"'{printable(file)}': it is not certain which line names which of the labels"
                f" {numbers[0]} to {numbers[-1]}; begin each line with its number, as in"
                f" '{numbers[0]} daisy', or name these labels in their order with"
                " class_names"
            )


def _names_in(file: Path, numbers: Set[int]) -> Mapping[int, str]:
    """Reads the names of numbers, if it is certain which number has which; else none."""
    text = decoded(file.read_bytes())
    if file.suffix == ".txt":
        return _names_in_lines([line.strip() for line in text.splitlines()], numbers)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if isinstance(content, list):
        texts = [name for name in content if isinstance(name, str)]
        return _counted(texts, numbers) if len(texts) == len(content) else {}
    pairs = [*content.items()] if isinstance(content, dict) else []
    by_number = [
        (int(match[1]), name)
        for number, name in pairs
        if isinstance(name, str) and (match := _NUMBER.fullmatch(number))
    ]
    by_name = [(number, name) for name, number in pairs if type(number) is int]
    return _complete(by_number, numbers) or _complete(by_name, numbers)


def _names_in_lines(lines: Iterable[str], numbers: Set[int]) -> Mapping[int, str]:
    """Reads lines with a number before or after each name, perhaps below a heading, or names."""
    lines = [*filter(None, lines)]
    for pattern in _NUMBERED_LINES:
        matches = [pattern.fullmatch(line) for line in lines]
        pairs = [(int(match["number"]), match["name"]) for match in matches if match]
        if all(matches[1:]) and len(dict(pairs)) == len(pairs) > 1:
            return _complete(pairs, numbers)
    return _counted(lines, numbers)


def _complete(pairs: Sequence[tuple[int, str]], numbers: Set[int]) -> Mapping[int, str]:
    """Returns names by their numbers, if each of these has a name and none has two; else none."""
    names = dict(pairs)
    return names if len(names) == len(pairs) and names.keys() >= numbers else {}


def _counted(names: Sequence[str], numbers: Set[int]) -> Mapping[int, str]:
    """Counts names from 0, or from 1, if the first or last number leaves no other way; else none.

    More names than numbers may have a heading among them, or a class that does not occur.
    """
    first, last = min(numbers), max(numbers)
    if first == 0 and last == len(names) - 1:
        return dict(enumerate(names))
    return dict(enumerate(names, start=1)) if first > 0 and last == len(names) else {}
