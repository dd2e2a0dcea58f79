"""Photographs a run's report, TensorBoard and the page to try it for docs/, with Chromium.

``python scripts/screenshots.py runs/NAME PHOTO``; the page needs gradio.
"""

import runpy
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, cast

from PIL import Image
from tensorboard.program import TensorBoard

from project import report

SHOWN = 900  # the pictures' width in pixels


def photograph(address: str, window: tuple[int, int], file: str, *options: str) -> None:
    """Writes the first screen at an address, in a window of (width, height) pixels."""
    with tempfile.TemporaryDirectory() as folder:
        screen = f"{folder}/screen.png"
        size = f"--window-size={window[0]},{window[1]}"
        command = [
            "chromium",
            "--headless",
            "--no-sandbox",
            "--hide-scrollbars",
            f"--user-data-dir={folder}",
            size,
        ]
        subprocess.run(
            [*command, *options, f"--screenshot={screen}", address], check=True, capture_output=True
        )
        page = Image.open(screen).convert("RGB")
    page.resize((SHOWN, window[1] * SHOWN // window[0]), Image.Resampling.LANCZOS).save(
        file, quality=80, optimize=True
    )
    print(file)


if __name__ == "__main__":
    run = Path(sys.argv[1])
    report.main(report.parser().parse_args([str(run)]))
    photograph((run / "report.html").absolute().as_uri(), (1100, 1150), "docs/report.jpg")
    board = cast(Any, TensorBoard)()
    board.configure(argv=[None, "--logdir", str(run.parent), "--port", "0"])
    loaded = "--virtual-time-budget=60000"  # in ms: the page draws itself
    photograph(f"{board.launch()}#images", (1400, 660), "docs/tensorboard.jpg", loaded)
    demo = runpy.run_path("examples/deploy/demo.py")["page"](
        run / "checkpoints" / "best.ckpt", sys.argv[2]
    )
    with demo:  # at once, and by a plain request, for which Chromium's clock waits
        demo.load(demo.fn, demo.input_components, demo.output_components, queue=False)
    _, address, _ = demo.launch(prevent_thread_lock=True, quiet=True)
    photograph(address, (1100, 720), "docs/demo.jpg", loaded)
