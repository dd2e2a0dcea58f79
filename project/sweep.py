"""``python -m project.sweep``: a search over options of ``project.fit``, each trial a run of its own."""

from importlib.util import find_spec

from jsonargparse import Namespace
from jsonargparse.typing import NonNegativeInt, PositiveFloat, PositiveInt

from project.engine.cli.command import one_line_errors, quiet_libraries
from project.engine.cli.parser import OneLineErrorParser
from project.engine.errors import UserError


def parse(args: list[str] | None = None) -> Namespace:
    """Parses the command line, ``sys.argv`` by default."""
    parser = OneLineErrorParser(
        prog="python -m project.sweep",
        description="Searches over options of project.fit with Optuna. FILE names them and what they may be; each trial is"
        " a run of project.fit. The same command resumes a sweep; started more than once, the processes share it.",
        epilog="example: python -m project.sweep configs/sweeps/cifar10_resnet9.yaml --n_trials 30",
    )
    parser.add_argument("file", type=str, metavar="FILE", help="A YAML file with 'command' and 'options'.")
    parser.add_argument(
        "--n_trials", type=PositiveInt, default=20, help="Trials that there shall be, of all processes."
    )
    parser.add_argument(
        "--timeout", type=PositiveFloat | None, default=None, help="Seconds after which no further trial starts."
    )
    parser.add_argument("--seed", type=NonNegativeInt, default=0, help="The random seed of the search.")
    parser.add_argument(
        "--prune_after",
        type=PositiveInt,
        default=1,
        help="Validations that every trial has; after these, it is pruned where it is worse than the median of at least"
        " five complete trials was at the same time.",
    )
    parser.add_argument(
        "--folder", type=str | None, default=None, help="The sweep's folder, by default runs/ and FILE's name."
    )
    return parser.parse_args(args)


def main() -> None:
    """Runs the command."""
    quiet_libraries()
    with one_line_errors():
        options = parse()
        if find_spec("optuna") is None:
            raise UserError("a sweep needs a package: pip install 'optuna>=5,<6'")
        from project.search.loop import sweep  # imports it

        print(sweep(options))


if __name__ == "__main__":
    main()
