"""``python -m project.check_data``: reads every image once; says what is there and whether it can train."""

import re
import shlex
import sys
import warnings
from pathlib import Path
from typing import Any
from unicodedata import combining, east_asian_width

from jsonargparse import Namespace

from project.analysis.tables import require_writable, write_json
from project.data import CSVDataModule, FolderDataModule
from project.engine.cli.command import one_line_errors
from project.engine.cli.parser import OneLineErrorParser
from project.engine.errors import UserError, printable
from project.engine.loading.checks import leave_out
from project.engine.loading.survey import survey
from project.engine.run.progress import note

_LISTED = 10
_BATCH_SIZE = 64  # the default of project.fit, where it has to be lowered for a small set
_SPLITTING = {"val_fraction": 0.1, "test_fraction": 0.1, "split_seed": 0}  # with the defaults of project.fit
_OF_CSV = {
    "root": "What paths in the CSV are relative to, by default the folder that it lies in.",
    "path_column": "The column of the image files, by default path.",
    "label_column": "The column of the names of the classes, by default label.",
    "split_column": "The column of train, val or test, by default split, if there is one.",
}


def parse(args: list[str] | None = None) -> Namespace:
    """Parses the command line, ``sys.argv`` by default."""
    parser = OneLineErrorParser(
        prog="python -m project.check_data",
        description="Reads every image of a folder, or of a CSV, once and says what is there: classes, unreadable files,"
        " duplicates, sizes. Ends with code 0 where project.fit can train on it, with code 1 where it would refuse it.",
        epilog="example: python -m project.check_data path/to/folder --output report.json",
    )
    parser.add_argument(
        "data",
        type=str,
        help="A folder, as --data.root of project.fit takes it, or a CSV, as --data.file of CSVDataModule.",
    )
    parser.add_argument("--output", type=str | None, default=None, help="Where everything goes as JSON, if anywhere.")
    for split in ("val", "test"):
        help_ = f"The share of each class that becomes {split} data, as --data.{split}_fraction of project.fit."
        parser.add_argument(f"--{split}_fraction", type=float, default=_SPLITTING[f"{split}_fraction"], help=help_)
    parser.add_argument(
        "--split_seed", type=int, default=0, help="Decides which images those are, as --data.split_seed of project.fit."
    )
    for name, help_ in _OF_CSV.items():
        parser.add_argument(f"--{name}", type=str | None, default=None, help=help_)
    return parser.parse_args(args)


def check_data(options: Namespace) -> int:
    """Checks, prints, and writes the JSON file.

    Args:
        options: As :func:`parse` returns them.

    Returns:
        The exit code: 0 where training would work, 1 where it would not.

    Raises:
        UserError: An option has no acceptable value, or the output cannot be written.
    """
    given = _data_options(options)
    data = _data_module(given)
    if options.output is not None:
        require_writable("--output", options.output)
    found: dict[str, Any] = {"data": options.data}
    try:
        splits = data.files()
    except UserError as error:
        refusal: str | None = _with_own_options(error)
    else:
        found |= survey(data.images_root, splits)
        if isinstance(data, FolderDataModule):
            deeper = data.in_sub_folders()
            found["in_sub_folders"] = [file.relative_to(data.root).as_posix() for file in deeper]
        print(survey_table(found), flush=True)
        refusal = _refusal(found, data)
    if options.output is not None:
        write_json("--output", options.output, found | {"trains": refusal is None, "refusal": refusal})
    if refusal is not None:
        note(f"error: {refusal}")
        return 1
    print(f"\n  train   {_fit_command(found, given)}")
    return 0


def _data_options(options: Namespace) -> dict[str, Any]:
    """What the data module gets that is not its default."""
    changed = {name: options[name] for name, default in _SPLITTING.items() if options[name] != default}
    of_csv = {name: options[name] for name in _OF_CSV if options[name] is not None}
    if Path(options.data).expanduser().is_file() or options.data.lower().endswith((".csv", ".tsv")):
        return {"file": options.data} | of_csv | changed
    if of_csv:
        raise UserError(f"--{next(iter(of_csv))} goes with a CSV, but '{options.data}' is none")
    return {"root": options.data} | changed


def _data_module(given: dict[str, Any]) -> CSVDataModule | FolderDataModule:
    try:
        return CSVDataModule(**given) if "file" in given else FolderDataModule(**given)
    except UserError as error:
        raise UserError(_with_own_options(error)) from error


def _with_own_options(error: UserError) -> str:
    """What is wrong with the data, with the shorter names that options have here."""
    return re.sub(r"^--data\.(root|file): ", "", str(error)).replace("--data.", "--")


def _refusal(found: dict[str, Any], data: CSVDataModule | FolderDataModule) -> str | None:
    """Why project.fit would end with an error, if it would."""
    unreadable = {data.images_root / entry["file"]: entry["reason"] for entry in found["unreadable"]}
    if not unreadable:
        return None
    try:
        leave_out(data.files(), unreadable)
    except UserError as error:
        return str(error)
    count = f"{len(unreadable):,} of {found['images']:,} files cannot be read as images"
    return f"{count}; repair or remove them, or train without them by --data.on_bad_image skip"


def _fit_command(found: dict[str, Any], given: dict[str, Any]) -> str:
    options = " ".join(f"--data.{name} {shlex.quote(str(value))}" for name, value in given.items())
    command = f"python -m project.fit --data {'CSV' if 'file' in given else 'Folder'}DataModule {options}"
    training = sum(counts["train"] for counts in found["classes"].values())
    return command if training >= _BATCH_SIZE else f"{command} --data.batch_size {max(1, training // 2)}"


def survey_table(found: dict[str, Any]) -> str:
    """Lays out classes, sizes, kinds, unreadable and suspicious files, and duplicates for a terminal.

    Args:
        found: As :func:`project.engine.loading.survey.survey` returns it.
    """
    unreadable = [f"{entry['file']} ({entry['reason']})" for entry in found["unreadable"]]
    return "\n".join(
        [
            *_class_rows(found["classes"]),
            *_image_rows(found),
            *_listed("unreadable", unreadable),
            *_suspicious(found),
            *_listed("same image in two classes", _groups(found["duplicates"], "across_classes")),
            *_listed("same image in two splits", _groups(found["duplicates"], "across_splits")),
        ]
    )


def _class_rows(classes: dict[str, dict[str, int]]) -> list[str]:
    splits = list(next(iter(classes.values())))
    total = {split: sum(counts[split] for counts in classes.values()) for split in splits}
    width = max(_cells(printable(name)) for name in [*classes, "class"])
    rows = [f"  {_padded('class', width)}" + "".join(f"{heading:>10}" for heading in [*splits, "all", "share"])]
    for name, counts in [*classes.items(), ("", total)]:
        together = sum(counts.values())
        numbers = "".join(f"{count:>10,}" for count in [*counts.values(), together])
        rows.append(f"  {_padded(printable(name), width)}{numbers}{together / sum(total.values()):>10.1%}")
    return rows


def _image_rows(found: dict[str, Any]) -> list[str]:
    rows = [""]
    if deeper := found.get("in_sub_folders"):
        rows.append(_row("in folders within classes", f"{len(deeper):,}, as {printable(deeper[0])}"))
    for side in ("width", "height"):
        if found[side]:
            sizes = found[side]
            rows.append(_row(side, f"{sizes['min']:,} to {sizes['max']:,} pixels, median {sizes['median']:,}"))
    for kind in ("formats", "modes"):
        counts = [f"{name} {count:,}" for name, count in found[kind].items()]
        rows.append(_row(kind, ", ".join(counts) or "none"))
    if found["animated"]:
        rows.append(_row("animated", f"{found['animated']:,}, of which the first frame is used"))
    if found["turned_by_exif"]:
        rows.append(_row("turned by EXIF", f"{found['turned_by_exif']:,}, which are used upright"))
    return rows


def _suspicious(found: dict[str, Any]) -> list[str]:
    """Rows about files that can be read but look wrong, if there are any."""
    dark = [
        f"{entry['file']} (its brightest pixel is {entry['brightest']} of 255: 16 bits that hold fewer?)"
        for entry in found["dark"]
    ]
    holes = [
        f"{entry['file']} (zeros inside: a part is lost, unless most of it is of one colour)"
        for entry in found["holes"]
    ]
    return [
        line
        for title, lines in (("nearly black", dark), ("perhaps damaged", holes))
        if lines
        for line in _listed(title, lines)
    ]


def _listed(title: str, lines: list[str]) -> list[str]:
    """A title with a count, and the first lines."""
    more = [f"    and {len(lines) - _LISTED:,} more, all of which --output writes"] if len(lines) > _LISTED else []
    return [
        _row(title, f"{len(lines):,}" if lines else "none"),
        *(f"    {printable(line)}" for line in lines[:_LISTED]),
        *more,
    ]


def _groups(duplicates: list[dict[str, Any]], flag: str) -> list[str]:
    groups = [group["files"] for group in duplicates if group[flag]]
    return [" = ".join(f"{entry['file']} ({entry['split']})" for entry in files) for files in groups]


def _row(name: str, text: str) -> str:
    return f"  {name:<30}{text}"


def _padded(text: str, width: int) -> str:
    return text + " " * (width - _cells(text))


def _cells(text: str) -> int:
    """How wide a terminal shows it: Chinese takes two cells a character, an accent of its own none."""
    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def main() -> None:
    """Runs the command."""
    warnings.filterwarnings("ignore", module="PIL")  # on what it gets over
    with one_line_errors():
        sys.exit(check_data(parse()))


if __name__ == "__main__":
    main()
