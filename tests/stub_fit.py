"""Stands in for ``python -m project.fit`` in sweeps: writes a curve that is a function of the options in milliseconds.

Beside the runs, ``started`` gets a line for each process. A file ``stop_at`` there names a trial and an epoch at which
that trial interrupts the sweep once and waits to be stopped.
"""

import json
import os
import signal
import sys
from pathlib import Path

options = dict(argument.removeprefix("--").partition("=")[::2] for argument in sys.argv[1:])
root, name = Path(options["trainer.default_root_dir"]), options["name"]
with open(root / "started", "a") as file:
    file.write(f"{name}\n")
if options["kind"] == "broken":
    sys.exit("error: there is no such kind")
run, lr, epochs = root / name, float(options["lr"]), int(options["epochs"])
run.mkdir(exist_ok=True)
for epoch in range(1, epochs + 1):
    rows = [f"{n},{(n + 1) * (1 - abs(lr - 0.3)) / epochs!r}\n" for n in range(epoch)]
    (run / "partial").write_text("epoch,val/accuracy\n" + "".join(rows))
    (run / "partial").replace(run / "metrics.csv")
    stop_at = root / "stop_at"
    if stop_at.exists() and stop_at.read_text() == f"{name} {epoch}":
        stop_at.unlink()
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
        os.kill(os.getppid(), signal.SIGINT)
        signal.pause()
same = {"accuracy": 0.5, "correct": 1, "total": 2, "f1": 0.5, "loss": 1.0}
(run / "metrics.json").write_text(json.dumps({"val": same, "test": same}))
