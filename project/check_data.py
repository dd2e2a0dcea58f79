"""``python -m project.check_data``: reads every image once; says what is there and whether it can train."""

import re
import shlex
import warnings
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from project.data import CSVDataModule, FolderDataModule
from project.engine import CommandParser, OutputFile, UserError, note, printable, run_command
from project.engine.cli.classes import accepted
from project.engine.loading.check import leave_out, survey

_LISTED = 10
_OPTIONS = ("val_fraction", "test_fraction", "split_seed", "group", "channels", "bits")
_OF_CSV = ("root", "path_column", "label_column", "split_column", "delimiter")


def parse(args: list[str] | None = None) -> Namespace:
    """Parses the command line, ``sys.argv`` by default."""
    parser = CommandParser(
        prog="python -m project.check_data",
        description="Reads every image of a folder, or of a CSV, once and says what is there: classes, unreadable files,"
        " duplicates, sizes. Ends with code 0 where project.fit can train on it, with code 1 where it would refuse it.",
        epilog="example: python -m project.check_data path/to/folder --output report.json",
    )
    help_ = "A folder or a CSV, as --data of project.fit takes it."
    parser.add_argument("data", type=str, help=help_)
    parser.add_argument(
        "--output", type=str | None, default=None, help="A JSON file for everything that was found."
    )
    others = accepted(CSVDataModule).keys() - {*_OPTIONS, *_OF_CSV}
    parser.add_method_arguments(CSVDataModule, "__init__", as_group=False, skip={*others})
    return parser.parse_args(args)


def check_data(options: Namespace) -> int:
    """Checks, prints, and writes the JSON file; the exit code is 0 where training would work, 1 where it would not."""
    defaults = accepted(CSVDataModule)
    given = {
        name: options[name] for name in (*_OF_CSV, *_OPTIONS) if options[name] != defaults[name]
    }
    is_csv = Path(options.data).expanduser().is_file() or options.data.lower().endswith(
        (".csv", ".tsv")
    )
    if not is_csv and (of_csv := [name for name in _OF_CSV if name in given]):
        raise UserError(f"--{of_csv[0]} requires a CSV, but '{options.data}' is none")
    if options.output is not None:
        OutputFile("--output", options.output).require_writable()
    found: dict[str, Any] = {"data": options.data}
    refusal = None
    given = {"file" if is_csv else "root": options.data} | given
    try:
        kind: type[CSVDataModule | FolderDataModule] = CSVDataModule if is_csv else FolderDataModule
        data = kind(**given)
        files = data.files()
        found |= survey(data.images_root, files, data.bands)
        if options.group is not None:
            splits = data.splits_of_groups(
                kind(**given | {"group": None}).files()
            )  # as they would be without
            divided = sum(len(places) > 1 for places in splits.values())
            found["groups"] = {"count": len(splits), "divided_by_file": divided}
        print(f"  {printable(data.layout)}\n\n{survey_table(found)}", flush=True)
        if unreadable := {
            str(data.images_root / entry["file"]): entry["reason"] for entry in found["unreadable"]
        }:
            leave_out(files, unreadable)
            count = f"{len(unreadable):,} of {found['images']:,} files cannot be read as images"
            refusal = f"{count}; repair or remove them, or skip them with --data.on_bad_image skip"
    except UserError as error:  # whose options have shorter names here
        refusal = re.sub(r"^--data\.(root|file): ", "", str(error)).replace("--data.", "--")
    if options.output is not None:
        found |= {"trains": refusal is None, "refusal": refusal}
        OutputFile("--output", options.output).write_json(found)
    if refusal is not None:
        note(f"error: {refusal}")
        return 1
    data_options = _data_options(found, given)
    print(
        f"\n  fine-tune       python -m project.fit --config configs/finetune.yaml {data_options}"
    )
    print(f"  from scratch    python -m project.fit {data_options}")
    return 0


def _data_options(found: dict[str, Any], given: dict[str, Any]) -> str:
    (_, path), *others = given.items()
    options = [
        f"--data {shlex.quote(path)}",
        *(f"--data.{name} {shlex.quote(str(value))}" for name, value in others),
    ]
    training = sum(counts["train"] for counts in found["classes"].values())
    if training < accepted(CSVDataModule)["batch_size"]:
        options.append(f"--data.batch_size {max(1, training // 2)}")
    return " ".join(options)


def survey_table(found: dict[str, Any]) -> str:
    """Lays out for a terminal what :func:`project.engine.loading.check.survey` found."""
    counts = found["classes"]
    splits = list(next(iter(counts.values())))
    total = {split: sum(of_class[split] for of_class in counts.values()) for split in splits}
    width = max(len(printable(name)) for name in [*counts, "class"])
    lines = [
        f"  {'class':<{width}}" + "".join(f"{heading:>10}" for heading in [*splits, "all", "share"])
    ]
    for name, of_class in [*counts.items(), ("", total)]:
        together = sum(of_class.values())
        numbers = "".join(f"{count:>10,}" for count in [*of_class.values(), together])
        lines.append(
            f"  {printable(name):<{width}}{numbers}{together / sum(total.values()):>10.1%}"
        )
    lines.append("")
    for side in ("width", "height"):
        if span := found[side]:
            lines += [
                _row(side, f"{span['min']:,} to {span['max']:,} pixels, median {span['median']:,}")
            ]
    for kind in ("formats", "modes"):
        lines += [
            _row(
                kind,
                ", ".join(f"{name} {count:,}" for name, count in found[kind].items()) or "none",
            )
        ]
    lines += _listed(
        "unreadable", [f"{entry['file']} ({entry['reason']})" for entry in found["unreadable"]]
    )
    if "groups" in found:
        count, divided = found["groups"].values()
        lines += [
            _row(
                "groups", f"{count:,}, each in one split; a split by file would divide {divided:,}"
            )
        ]
    for across in ("classes", "splits"):
        groups = [group["files"] for group in found["duplicates"] if group[f"across_{across}"]]
        same = [
            " = ".join(f"{entry['file']} ({entry['split']})" for entry in files) for files in groups
        ]
        lines += _listed(f"same image in two {across}", same)
    return "\n".join(lines)


def _listed(title: str, lines: list[str]) -> list[str]:
    more = (
        [f"    and {len(lines) - _LISTED:,} more, all of which --output writes"]
        if len(lines) > _LISTED
        else []
    )
    shown = [f"    {printable(line)}" for line in lines[:_LISTED]]
    return [_row(title, f"{len(lines):,}" if lines else "none"), *shown, *more]


def _row(name: str, text: str) -> str:
    return f"  {name:<30}{text}"


def main() -> None:
    """Runs the command."""
    warnings.filterwarnings("ignore", module="PIL")  # on what it gets over
    run_command(lambda: check_data(parse()))


if __name__ == "__main__":
    main()
