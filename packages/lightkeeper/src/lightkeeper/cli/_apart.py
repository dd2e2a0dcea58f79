"""Trainings that a script starts, and that end with it."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from ..exact._processes import EXIT_CODE, StopRequest, end_with_parent


def run_apart(command: Sequence[str], is_done: Callable[[], bool] = lambda: False) -> int:
    """Runs a training that ends when this process is ended, once it has saved.

    What asks this process to stop, such as the end of its terminal, is passed on. Linux does so
    where this process is killed, too. A terminal's own signals do not reach the command.

    Args:
        command: The command and its arguments.
        is_done: Asked about once a second; if it returns True, the command is asked to stop.

    Returns:
        The command's exit code; 75 if a signal stopped it, also before it could save. This process
        ends with 75 if it was asked to stop.
    """
    # nohup has it ignored
    hangup = [] if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else [signal.SIGHUP]
    request = StopRequest(*hangup)
    request.listen()
    try:
        process = subprocess.Popen(
            command,
            start_new_session=True,
            preexec_fn=partial(end_with_parent, os.getpid(), signal.SIGTERM),
        )
        try:
            while process.poll() is None and not (request.made or is_done()):
                with suppress(subprocess.TimeoutExpired):
                    process.wait(1.0)
        finally:
            process.terminate()  # nothing, if it has ended
            code = process.wait()
    finally:
        request.release()
    if request.made:
        sys.exit(EXIT_CODE)
    return EXIT_CODE if -code in (*StopRequest.SIGNALS, signal.SIGHUP) else code
