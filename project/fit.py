"""``python -m project.fit``: train a ResNet, then test its best checkpoint once."""

from project.cli import ProjectCLI, one_line_errors, quiet_libraries


def main() -> None:
    """Runs the command."""
    quiet_libraries()
    with one_line_errors():
        ProjectCLI().fit()


if __name__ == "__main__":
    main()
