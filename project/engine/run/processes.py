"""The processes that Lightning starts for a run on this machine: when one of them dies, the others end, and say so."""

import atexit
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ..upstream import replace_process_observer

FIRST_PID = "LOCAL_RANK_0_PID"  # in the environment of what the first process starts

_PATIENCE = 5.0  # seconds for a process to end by itself


class ProcessWatch(threading.Thread):
    """Ends this process when another one of the run, on this machine, has died.

    Processes wait for each other in every step: without a watch the others would wait until the backend's time limit,
    half an hour and more. A thread looks several times a second; the main one may be waiting inside torch. Processes
    that torchrun or srun has started are theirs to watch.

    Args:
        advice: Returns what to do about it, once it has happened.
        leave: Ends the process at once, with a code; no clean-up, as that would wait for the dead one too.
    """

    def __init__(self, advice: Callable[[], str], leave: Callable[[int], Any] = os._exit) -> None:
        super().__init__(name="process-watch", daemon=True)
        self._advice, self._leave = advice, leave
        self._children: Sequence[subprocess.Popen[Any]] = ()
        self._stopped = threading.Event()

    def watch_children(self, children: Sequence[subprocess.Popen[Any]]) -> None:
        """Watches what this process, the first, has started, if anything: with one device there is nothing."""
        self._children = children
        if children:
            self.start()

    def stop(self) -> None:
        """Lets others end as they like; to be called when nothing more is expected of them."""
        self._stopped.set()

    def run(self) -> None:
        """Looks until another process has died or the watch is stopped."""
        look = self._look_at_children if self._children else self._look_at_parent
        while not self._stopped.wait(0.2) and not look():
            pass

    def _look_at_parent(self) -> bool:
        if os.getppid() == int(os.environ[FIRST_PID]):
            return False
        if os.environ["LOCAL_RANK"] == "1":  # one line, however many are left
            self._say("the first process of this run was killed (out of memory?)")
        self._leave(2)
        return True

    def _look_at_children(self) -> bool:
        for rank, child in enumerate(self._children, start=1):
            code = child.poll()
            if code:
                self._end_with(rank, code)
                return True
        return False

    def _end_with(self, rank: int, code: int) -> None:
        """Ends all, after a while where the process ended by an error: it has said so, and perhaps all have met it."""
        if code > 0 and self._stopped.wait(_PATIENCE):
            return
        for child in self._children:
            child.kill()
        if code < 0:
            cause = " (out of memory?)" if -code == signal.SIGKILL else ""
            self._say(f"process {rank} of this run was ended by signal {-code}, {signal.strsignal(-code)}{cause}")
        self._leave(max(code, 2))

    def _say(self, what: str) -> None:
        sys.stderr.write(f"error: {what}; {self._advice()}\n")
        sys.stderr.flush()


def let_the_watch_speak() -> None:
    """Waits for the watch to end this process, which has lost the connection to another one; it knows which, and why.

    Returns where there is no watch, or where the other one was not on this machine.
    """
    for thread in threading.enumerate():
        if isinstance(thread, ProcessWatch):
            thread.join(6.0)


def watch_processes(launcher: Any, advice: Callable[[], str]) -> None:
    """Sets the watch up, in a process that Lightning has started or that is about to have it start others.

    Args:
        launcher: Lightning's, or None.
        advice: See :class:`ProcessWatch`.
    """
    watch = ProcessWatch(advice)
    if FIRST_PID in os.environ and int(os.environ.get("LOCAL_RANK", 0)) > 0:
        watch.start()
    elif hasattr(launcher, "procs") and not launcher.cluster_environment.creates_processes_externally:
        os.environ[FIRST_PID] = str(os.getpid())
        replace_process_observer(watch.watch_children)
        atexit.register(_end_processes, watch, launcher)


def _end_processes(watch: ProcessWatch, launcher: Any) -> None:
    """Ends what Lightning has started and forgets where the first process fails: on GPUs they would wait for it."""
    watch.stop()
    for process in launcher.procs:
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
