"""``python -m project.check_data``: read every image once, and say whether they can train."""

from typing import Any

from jsonargparse import Namespace

from project.data import CSVDataModule, FolderDataModule
from project.engine import CommandParser, check_images, note

_LISTED = 10
_OF_DATA = {
    *("root", "path_column", "label_column", "split_column", "val_fraction", "test_fraction"),
    *("split_seed", "group", "label_from", "channels", "bits"),
}


def parser() -> CommandParser:
    """Returns the parser of the options."""
    parser = CommandParser(
        prog="python -m project.check_data",
        description="Reads every image of a folder, or of a CSV, once and says what is there:"
        " classes, unreadable files, duplicates, sizes. Ends with code 0 where project.fit can train"
        " on it, with code 1 where it would refuse it.",
        epilog="example: python -m project.check_data path/to/folder --output report.json",
    )
    option = parser.add_argument
    option("data", type=str, help="A folder or a CSV, as --data of fit takes it.")
    option(
        "--output", type=str | None, default=None, help="A JSON file for everything that was found."
    )
    parser.add_arguments_of(CSVDataModule, _OF_DATA)
    return parser


def main(options: Namespace) -> int:
    """Prints what is there, and how to train on it; returns 1 if ``fit`` would refuse it."""
    facts = check_images(options, FolderDataModule, CSVDataModule)
    if "classes" in facts:
        print(f"  {facts['layout']}\n\n{survey_table(facts)}")
    if not facts["trains"]:
        note(f"error: {facts['refusal']}")
        return 1
    fine_tuning = "python -m project.fit --config configs/finetune.yaml"
    print(f"\n  fine-tune       {fine_tuning} {facts['flags']}")
    print(f"  from scratch    python -m project.fit {facts['flags']}")
    return 0


def survey_table(survey: dict[str, Any]) -> str:
    """Lays out a survey for a terminal."""
    # control characters are escaped
    counts = {repr(name)[1:-1]: of_class for name, of_class in survey["classes"].items()}
    splits = list(next(iter(counts.values())))
    total = {split: sum(of_class[split] for of_class in counts.values()) for split in splits}
    width = max(map(len, [*counts, "class"]))
    lines = [
        f"  {'class':<{width}}" + "".join(f"{heading:>10}" for heading in [*splits, "all", "share"])
    ]
    for name, of_class in [*counts.items(), ("", total)]:
        together = sum(of_class.values())
        numbers = "".join(f"{count:>10,}" for count in [*of_class.values(), together])
        share = together / sum(total.values())
        lines.append(f"  {name:<{width}}{numbers}{share:>10.1%}")
    lines.append("")
    for side in ("width", "height"):
        if span := survey[side]:
            pixels = f"{span['min']:,} to {span['max']:,} pixels, median {span['median']:,}"
            lines.append(_row(side, pixels))
    for kind in ("formats", "modes"):
        numbers = ", ".join(f"{name} {count:,}" for name, count in survey[kind].items())
        lines.append(_row(kind, numbers or "none"))
    unreadable = [f"{entry['file']!r} ({entry['reason']})" for entry in survey["unreadable"]]
    lines += _listed("unreadable", unreadable)
    if "groups" in survey:
        lines.append(_row("groups", f"{survey['groups']:,}, each in one split"))
    for across in ("classes", "splits"):
        groups = [group["files"] for group in survey["duplicates"] if group[f"across_{across}"]]
        same = [
            " = ".join(f"{file['file']!r} ({file['split']})" for file in files) for files in groups
        ]
        lines += _listed(f"same image in two {across}", same)
    return "\n".join(lines)


def _listed(title: str, lines: list[str]) -> list[str]:
    shown = [f"    {line}" for line in lines[:_LISTED]]
    if len(lines) > _LISTED:
        shown.append(f"    and {len(lines) - _LISTED:,} more, all of which --output writes")
    return [_row(title, f"{len(lines):,}" if lines else "none"), *shown]


def _row(name: str, text: str) -> str:
    return f"  {name:<30}{text}"


if __name__ == "__main__":
    parser().run(main)
