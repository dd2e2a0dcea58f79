"""Image classification on PyTorch Lightning; the README tells how to begin."""

import sys

_looking = sys.argv[:1] == ["-m"]  # what Python puts there while it looks for the module of ``python -m project.fit``
if _looking and any(word.startswith(f"{__name__}.") for word in sys.orig_argv):  # and not of one that imports this
    from project.engine.cli.terminal import begin_command

    begin_command()
