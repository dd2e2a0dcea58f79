"""``python -m project.export``: a checkpoint as one file that classifies without this project."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import torch
from jsonargparse import Namespace

from project.analysis.tables import writing
from project.deploy.comparison import (
    Comparison,
    accuracy,
    checkpoint_classifier,
    classify_all,
    compare,
    time_in_turns,
)
from project.deploy.formats import (
    SUFFIXES,
    Classify,
    load_onnx,
    load_pt2,
    require_packages,
    write_onnx,
    write_pt2,
)
from project.deploy.quantize import quantize_to_int8
from project.deploy.samples import Samples, data_samples, folder_samples, folder_split, generated_samples
from project.engine.cli.arguments import IMPORT, import_named
from project.engine.cli.command import one_line_errors, quiet_libraries
from project.engine.cli.parser import OneLineErrorParser
from project.engine.errors import LINES, UserError, printable
from project.engine.run.checkpoint import ABOUT, About, read_checkpoint
from project.engine.run.progress import note
from project.engine.run.whole_file import whole_file
from project.model import ImageClassifier

TOLERANCE = 1e-4
"""How far a probability may be from the checkpoint's, from 0 to 1; float32 on other kernels differs by less than 1e-5."""
MOST_CHANGED = 0.1
"""The share of images whose label int8 may change; a network that does not survive quantising changes most."""
_COMPARED, _CALIBRATED, _MEASURED = 128, 128, 1000  # images, at most


def parse(args: list[str] | None = None) -> Namespace:
    """Parses the command line, ``sys.argv`` by default."""
    parser = OneLineErrorParser(
        prog="python -m project.export",
        description="Writes a checkpoint as one file that classifies without this project, with normalisation, softmax"
        " and class names inside; runs the file, and compares it with the checkpoint. Ends with code 0 where they"
        " agree; otherwise writes nothing and ends with code 2.",
        epilog="example: python -m project.export --ckpt_path runs/mine/checkpoints/best.ckpt --output mine.onnx",
    )
    parser.add_argument("checkpoint", nargs="?", type=str | None, default=None, help="The same as --ckpt_path.")
    parser.add_argument("--ckpt_path", type=str | None, default=None, help="The checkpoint.")
    parser.add_argument(
        "--output",
        type=str,
        required=True,
        help="The file: .onnx for ONNX Runtime, OpenCV and others, .pt2 for torch alone.",
    )
    parser.add_argument(
        "--images",
        type=str | None,
        default=None,
        help="A folder of images to compare on, and to calibrate int8 on; by default the checkpoint's own data, where"
        " they are at hand. With a folder for each class inside, --quantize also measures accuracy.",
    )
    parser.add_argument(
        "--quantize",
        type=Literal["int8"] | None,
        default=None,
        help="Computes in 8-bit integers, in a quarter of the size.",
    )
    parser.add_argument("--import", **IMPORT)
    parser.add_argument("--overwrite", action="store_true", help="Replaces a file that is there.")
    options = parser.parse_args(args)
    if (options.ckpt_path is None) == (options.checkpoint is None):
        parser.error("name one checkpoint, as in runs/NAME/checkpoints/best.ckpt; see --help")
    options.ckpt_path = options.ckpt_path or options.checkpoint
    return options


def export(options: Namespace) -> None:
    """Writes the file, compares it with the checkpoint, and prints what it found.

    Args:
        options: As :func:`parse` returns them.

    Raises:
        UserError: An option has no acceptable value, the checkpoint cannot be read, or the file does not compute what
            the checkpoint does.
    """
    import_named(options["import"])
    output = Path(options.output)
    _require_usable(output, options)
    about: About = read_checkpoint(options.ckpt_path)[ABOUT]
    model = ImageClassifier.load_from_checkpoint(options.ckpt_path).eval()
    expected = checkpoint_classifier(model)
    with writing("--output", output):
        if options.quantize is not None:
            _export_int8(model, expected, *_split(about, options.images), output)
            return
        samples = _samples(about, options.images)
        with whole_file(output) as partial:
            note(f"writing {output}…")
            write, load = (write_onnx, load_onnx) if output.suffix == ".onnx" else (write_pt2, load_pt2)
            write(model, partial)
            note(f"comparing on {samples.source}…")
            before, after = (classify_all(classify, samples.images) for classify in (expected, load(partial)))
            found = compare(before, after, not model.has_one_class)
            _require_close(found)
    _print_file(output, model, samples, found)


def _require_usable(output: Path, options: Namespace) -> None:
    """Notices before anything is read what the command line has wrong."""
    if output.suffix not in SUFFIXES:
        raise UserError(f"--output must end in {' or '.join(SUFFIXES)}, got '{output}'")
    if output.is_dir():
        raise UserError(f"--output: '{output}' is a folder")
    if output.exists() and not options.overwrite:
        raise UserError(f"--output: '{output}' is there already; give another name, or --overwrite")
    if not output.parent.is_dir():
        raise UserError(f"--output: there is no folder '{output.parent}'")
    if options.quantize is not None and output.suffix != ".onnx":
        raise UserError(f"--quantize {options.quantize} is for files that end in .onnx, got '{output}'")
    if options.images is not None and not Path(options.images).is_dir():
        raise UserError(f"--images: there is no folder '{options.images}'")
    require_packages(output.suffix)


def _samples(about: About, images: str | None) -> Samples:
    """Images to compare on: given, the checkpoint's own, or generated."""
    if images is not None:
        return folder_samples(Path(images), about["class_names"], about["preprocessing"], _COMPARED)
    try:
        return data_samples(about, "test", _COMPARED)
    except UserError as error:
        generated = generated_samples(about["preprocessing"]["crop"])
        return generated._replace(source=f"{generated.source}, as the checkpoint's are not at hand ({error})")


def _split(about: About, images: str | None) -> tuple[Samples, Samples]:
    """Images to calibrate and to measure on: given, or the checkpoint's own."""
    if images is not None:
        most = (_CALIBRATED, _MEASURED)
        return folder_split(Path(images), about["class_names"], about["preprocessing"], most)
    try:
        return data_samples(about, "val", _CALIBRATED), data_samples(about, "test", _MEASURED)
    except UserError as error:
        raise UserError(
            f"--quantize int8 needs images such as the network will see; give --images ({error})"
        ) from error


def _export_int8(
    model: ImageClassifier, expected: Classify, calibration: Samples, measured: Samples, output: Path
) -> None:
    several = not model.has_one_class
    with whole_file(output) as partial, TemporaryDirectory() as folder:
        exact = Path(folder) / "float32.onnx"
        write_onnx(model, exact)
        note(f"calibrating on {calibration.source}…")
        quantize_to_int8(exact, partial, calibration.images)
        note(f"measuring on {measured.source}…")
        sizes = [path.stat().st_size for path in (exact, partial)]
        classifiers = {"float32": load_onnx(exact), "int8": load_onnx(partial)}
        probabilities = {name: classify_all(classify, measured.images) for name, classify in classifiers.items()}
        before = classify_all(expected, measured.images)
        _require_close(compare(before, probabilities["float32"]))
        found = compare(before, probabilities["int8"], several)
        if not found.changed <= MOST_CHANGED * found.images:
            raise UserError(
                f"int8 changes the label of {found.changed:,} of {found.images:,} images, more than one in ten, so"
                f" nothing was written; calibrate on more images, or export without --quantize"
            )
        note("measuring the speed…")
        seconds = time_in_turns(classifiers, measured.images)
    _print_file(output, model, measured, found)
    print(f"\n  {'':<22}" + "".join(f"{name:>20}" for name in classifiers))
    if measured.labels is not None and (measured.labels.dim() > 1) == several:  # folders tell one label
        _print_row("accuracy", [accuracy(found, measured.labels, several) for found in probabilities.values()])
    _print_row("size", [f"{size / 1e6:.2f} MB" for size in sizes])
    _print_row("one image", [f"{1000 * seconds[name][0]:.2f} ms" for name in classifiers])
    _print_row("in batches of 16", [f"{1 / seconds[name][1]:.1f} images/s" for name in classifiers])
    print(f"  in ONNX Runtime on this machine's CPU, with {torch.get_num_threads()} threads, in turns, medians")


def _require_close(found: Comparison) -> None:
    if not found.largest <= TOLERANCE:  # nan, too
        raise UserError(
            f"the exported file does not compute what the checkpoint does: probabilities differ by up to"
            f" {found.largest:.2g} and {found.changed:,} of {found.images:,} labels, so nothing was written"
        )


def _print_file(output: Path, model: ImageClassifier, samples: Samples, found: Comparison) -> None:
    crop = model.preprocessing["crop"]
    text = [
        f"  written               {output} ({output.stat().st_size / 1e6:.2f} MB)",
        f"  input                 images: uint8 (N, 3, {crop}, {crop}), RGB",
        f"  output                probabilities: float32 (N, {len(model.class_names)})",
        f"  compared on           {samples.source}",
        f"  largest difference    {found.largest:.2g} in probability",
        f"  changed labels        {found.changed:,} of {found.images:,}",
    ]
    print(printable("\n".join(text), keep=LINES), flush=True)


def _print_row(name: str, cells: list[str]) -> None:
    print(f"  {name:<22}" + "".join(f"{cell:>20}" for cell in cells), flush=True)


def main() -> None:
    """Runs the command."""
    quiet_libraries()
    with one_line_errors():
        export(parse())


if __name__ == "__main__":
    main()
