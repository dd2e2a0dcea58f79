"""Signals only leave a note, and Ctrl-C twice ends a run at once."""

import os
import signal

import pytest

from project.engine.run.signals import StopRequest


@pytest.mark.parametrize("number", StopRequest.SIGNALS)
def test_a_signal_is_noted_and_afterwards_does_what_it_did_before(number):
    before, request = [signal.getsignal(one) for one in StopRequest.SIGNALS], StopRequest()
    request.listen()
    assert not request.made
    os.kill(os.getpid(), number)
    assert request.made
    for _ in range(2):
        request.ignore()
        assert [signal.getsignal(one) for one in StopRequest.SIGNALS] == before


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # the child does nothing that needs a thread
@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_a_process_that_was_asked_to_stop_before(first):
    child = os.fork()
    if child == 0:
        try:
            StopRequest().listen()
            os.kill(os.getpid(), first)
            os.kill(os.getpid(), signal.SIGINT)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGINT
