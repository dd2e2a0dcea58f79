"""Signals only leave a note, and Ctrl-C twice ends a run at once."""

import os
import signal

import pytest

from project.engine.run.signals import StopRequest


@pytest.fixture
def request_():
    """Listens for the length of a test."""
    request = StopRequest()
    request.listen()
    yield request
    request.ignore()


@pytest.mark.parametrize("number", StopRequest.SIGNALS)
def test_a_signal_is_noted_and_nothing_else_happens(request_, number):
    assert not request_.made
    os.kill(os.getpid(), number)
    assert request_.made


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


def test_afterwards_signals_do_what_they_did_before():
    before = [signal.getsignal(number) for number in StopRequest.SIGNALS]
    request = StopRequest()
    request.listen()
    assert all(signal.getsignal(number) == request._note for number in StopRequest.SIGNALS)
    for _ in range(2):
        request.ignore()
        assert [signal.getsignal(number) for number in StopRequest.SIGNALS] == before
