"""Stands in for ``python -m project.fit``: a curve that is a function of the options, a line for each epoch, in seconds
what training does in hours. It imports nothing but the standard library.

Beside the runs, ``started`` has a line for each process. A file ``kill_at`` there, with a trial and an epoch, lets that
trial kill the sweep and itself once, at that epoch; ``hold`` lets it stop the sweep there, and wait to be stopped;
``wait`` lets it wait alone.
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
run, lr = root / name, float(options["lr"])
run.mkdir(exist_ok=True)
curve = run / "events.out.tfevents.stub"
curve.touch()
epochs = int(options["epochs"])
for epoch in range(1, epochs + 1):
    if len(curve.read_text().splitlines()) < epoch:
        with open(curve, "a") as file:
            file.write(json.dumps(epoch * (1 - abs(lr - 0.3)) / epochs) + "\n")
    kill_at = root / "kill_at"
    if kill_at.exists() and kill_at.read_text() == f"{name} {epoch}":
        kill_at.unlink()
        os.kill(os.getppid(), signal.SIGKILL)
        sys.exit(75)
    for what in ("hold", "wait"):
        if (root / what).exists() and (root / what).read_text() == f"{name} {epoch}":
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
            if what == "hold":
                os.kill(os.getppid(), signal.SIGINT)
            signal.pause()
(run / "checkpoints").mkdir(exist_ok=True)
same = {"accuracy": 0.5, "correct": 1, "total": 2, "f1": 0.5, "loss": 1.0}
(run / "metrics.json").write_text(json.dumps({"val": same, "test": same}))
