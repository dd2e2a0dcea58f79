"""``python -m project.check_data``: read every image once, and say whether they can train."""

from typing import Any

from project.data import CSVDataModule, FolderDataModule
from project.engine import CheckDataCommand

_LISTED = 10


class CheckDataCLI(CheckDataCommand):
    """Checks a folder or a CSV."""

    module = "project.check_data"
    description = (
        "Reads every image of a folder, or of a CSV, once and says what is there: classes,"
        " unreadable files, duplicates, sizes. Ends with code 0 where project.fit can train on it,"
        " with code 1 where it would refuse it."
    )
    example = "path/to/folder --output report.json"
    folder_class = FolderDataModule
    csv_class = CSVDataModule

    def show_survey(self, layout: str, survey: dict[str, Any]) -> None:
        """Prints a table."""
        self.say(f"  {layout}\n\n{survey_table(survey)}")

    def show_commands(self, flags: str) -> None:
        """Prints what to do next."""
        fine_tuning = "python -m project.fit --config configs/finetune.yaml"
        self.say(f"\n  fine-tune       {fine_tuning} {flags}")
        self.say(f"  from scratch    python -m project.fit {flags}")


def survey_table(survey: dict[str, Any]) -> str:
    """Lays out a survey for a terminal."""
    counts = survey["classes"]
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
    CheckDataCLI.main()
