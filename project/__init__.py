"""Image classification on PyTorch Lightning; the README tells how to begin."""

import sys

if sys.argv[:1] == ["-m"]:  # what Python puts there while it looks for the module of ``python -m project.fit``
    from project.terminal import begin_command

    begin_command()
