"""Waiting on a condition, with a deadline. Nothing here sleeps for a fixed time and then hopes."""

import threading
import time

DEADLINE_S = 20.0
_POLL_S = 0.01


def until(what, look, within=DEADLINE_S):
    """Calls `look` until it returns something true, and returns that. Fails with `what` after `within` seconds."""
    end = time.monotonic() + within
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < end, f"not within {within} s: {what}"
        time.sleep(_POLL_S)


def in_time(call, within=DEADLINE_S):
    """The result of `call`, run on a thread of its own. Fails when it takes longer than `within` seconds."""
    job = Job(call)
    return job.result(within)


class Job:
    """A call on a thread of its own."""

    def __init__(self, call):
        self._outcome = None
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call):
        try:
            self._outcome = (call(), None)
        except BaseException as error:  # handed to whoever asks for the result
            self._outcome = (None, error)

    @property
    def done(self):
        return not self._thread.is_alive()

    def result(self, within=DEADLINE_S):
        """What the call returned, or its exception. Fails when it has not ended within `within` seconds."""
        self._thread.join(within)
        assert not self._thread.is_alive(), f"a call hung for more than {within} s"
        value, error = self._outcome
        if error is not None:
            raise error
        return value
