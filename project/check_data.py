"""``python -m project.check_data``: read every image once, and check the data before training."""

import json
import shlex
from pathlib import Path
from typing import Any, Literal

from jsonargparse import Namespace
from jsonargparse.typing import OpenUnitInterval, Path_fc, PositiveInt
from lightkeeper.cli import CommandParser, run_command
from lightkeeper.exact import UserError, note

from project.analysis.files import require_replaceable, write_whole

_MAX_LISTED = 10
_WIDEST = 60  # characters of a class's name
_OF_DATA: dict[str, tuple[object, str]] = {
    "root": (str, "The folder that paths in the table are relative to, by default its own."),
    "path_column": (str, "The column of the image files or ids."),
    "label_column": (str, "The column of the classes, by name or number."),
    "split_column": (str, "The column of train, val or test, or of 1 for val."),
    "group": (str, "Finds a file's group, such as patient[0-9]+, which stays in one split."),
    "label_from": (str, "Finds a file's class, such as ([a-z]+)_[0-9]+ of pug_12.jpg."),
    "class_names": (
        list[str],
        "The classes, such as [cat,dog], if folders look like splits; or names of numbers.",
    ),
    "val_fraction": (OpenUnitInterval, "The share of validation images, by default 0.1."),
    "test_fraction": (OpenUnitInterval, "The share of test images, by default 0.1."),
    "split_seed": (int, "Decides which images are validation's and which are test's."),
    "channels": (PositiveInt, "Takes images as they are stored, with that many channels."),
    "bits": (Literal[8, 16], "The bits of each of these channels, by default 8."),
}
"""Options of ``--data`` that decide what is there, here again so that ``--help`` needs no torch."""
_OF_TABLES = {"root", "path_column", "label_column", "split_column"}


def parser() -> CommandParser:
    """Returns the parser of the options."""
    parser = CommandParser(
        prog="python -m project.check_data",
        description="Reads every image of a folder, or of a CSV, once and says what is there:"
        " classes, unreadable files, duplicates, sizes. Ends with code 0 if project.fit can train"
        " on it by the command that is shown, with code 1 if it would refuse it.",
        epilog="example: python -m project.check_data path/to/folder --output report.json",
    )
    parser.add_argument("source", type=str, help="A folder or a CSV, as --data of fit takes it.")
    parser.add_argument("--output", type=Path_fc, help="A JSON file for everything that was found.")
    for name, (kind, text) in _OF_DATA.items():
        parser.add_argument(f"--{name}", type=kind, help=text)
    return parser


def main(options: Namespace) -> int:
    """Prints the survey and the commands for training; returns 1 if ``fit`` would refuse."""
    facts: dict[str, Any] = {"data": options.source, "refusal": None}
    if options.output is not None:
        require_replaceable(Path(options.output), ".json")
    try:
        _survey(options, facts)
    except UserError as error:
        positional = "file" if Path(options.source).is_file() else "root"
        is_option = error.option in _OF_DATA and error.option != positional
        facts["refusal"] = f"--{error}" if is_option else error.message
    if options.output is not None:
        write_whole(Path(options.output), f"{json.dumps(facts, indent=2)}\n".encode())
    if "classes" in facts:
        print(f"  {_shortened(facts['layout'], 1000)}\n\n{survey_table(facts)}")
        deep = sum(count for mode, count in facts["modes"].items() if mode.startswith("I"))
        if deep and options.bits is None:
            note(
                f"of {deep:,} images of 16 bits, the upper 8 are used without --bits 16 --channels 1"
            )
    if facts["refusal"] is not None:
        note(f"error: {facts['refusal']}")
        return 1
    fine_tuning = "python -m project.fit --config configs/finetune"
    print()
    if (Path(__file__).parents[1] / "configs/finetune_head.yaml").exists():  # needs examples/
        print(f"  the last layer  {fine_tuning}_head.yaml {facts['flags']}")
    print(f"  fine-tune       {fine_tuning}.yaml {facts['flags']}")
    print(f"  from scratch    python -m project.fit {facts['flags']}")
    return 0


def _survey(options: Namespace, facts: dict[str, Any]) -> None:
    """Adds to the facts, and raises a UserError if training would refuse the data."""
    # here, so that --help need not import torch
    from lightkeeper.images import ImageFilesDataModule

    from project.data import CSVDataModule, FolderDataModule

    given = {name: options[name] for name in _OF_DATA if options[name] is not None}
    path = Path(options.source).expanduser()
    if path.is_file() or path.suffix.lower() in (".csv", ".tsv"):
        data: ImageFilesDataModule = CSVDataModule(options.source, **given)
    elif of_tables := given.keys() & _OF_TABLES:
        raise UserError(f"--{min(of_tables)}: requires a CSV, but '{options.source}' is none")
    else:
        data = FolderDataModule(options.source, **given)
    facts |= data.survey() | {"layout": data.layout}
    images = data.split_sizes()["train"]
    if images < data.batch_size:
        given["batch_size"] = max(1, images // 2)
    flags = [f"--data.{name} {shlex.quote(str(value))}" for name, value in given.items()]
    facts["flags"] = " ".join([f"--data {shlex.quote(options.source)}", *flags])
    if unreadable := facts["unreadable"]:
        raise UserError(
            f"{len(unreadable):,} of {facts['images']:,} files cannot be read as images; repair or"
            " remove them, or let project.fit skip them with --data.on_bad_image skip"
        )


def survey_table(survey: dict[str, Any]) -> str:
    """Formats a survey as text: images of each class and split, sizes, formats and problems."""
    # repr escapes control characters
    counts = [(repr(name)[1:-1], by_split) for name, by_split in survey["classes"].items()]
    splits = list(counts[0][1])
    totals = {split: sum(by_split[split] for _, by_split in counts) for split in splits}
    width = min(_WIDEST, max(len(name) for name in [*dict(counts), "class"]))
    lines = [
        f"  {'class':<{width}}" + "".join(f"{heading:>10}" for heading in [*splits, "all", "share"])
    ]
    for name, by_split in [*counts, ("", totals)]:
        images = sum(by_split.values())
        cells = "".join(f"{count:>10,}" for count in [*by_split.values(), images])
        share = images / sum(totals.values())
        lines.append(f"  {_shortened(name, _WIDEST):<{width}}{cells}{share:>10.1%}")
    lines.append("")
    for dimension in ("width", "height"):
        if pixels := survey[dimension]:
            text = f"{pixels['min']:,} to {pixels['max']:,} pixels, median {pixels['median']:,}"
            lines.append(_row(dimension, text))
    for key in ("formats", "modes"):
        text = ", ".join(f"{name} {count:,}" for name, count in survey[key].items())
        lines.append(_row(key, text or "none"))
    unreadable = [f"{entry['file']!r} ({entry['reason']})" for entry in survey["unreadable"]]
    lines += _list_rows("unreadable", unreadable)
    for kind in ("classes", "splits"):
        groups = [group["files"] for group in survey["duplicates"] if group[f"across_{kind}"]]
        duplicates = [
            " = ".join(f"{file['file']!r} ({file['split']})" for file in files) for files in groups
        ]
        lines += _list_rows(f"same image in two {kind}", duplicates)
    return "\n".join(lines)


def _list_rows(title: str, lines: list[str]) -> list[str]:
    """Returns a row with the number of lines, and below it the first of them."""
    shown = [f"    {line}" for line in lines[:_MAX_LISTED]]
    if len(lines) > _MAX_LISTED:
        shown.append(f"    and {len(lines) - _MAX_LISTED:,} more; --output writes all")
    return [_row(title, f"{len(lines):,}" if lines else "none"), *shown]


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _row(name: str, text: str) -> str:
    return f"  {name:<30}{text}"


if __name__ == "__main__":
    run_command(lambda: main(parser().parse_args()))
