"""Whether and when a call is asked again: the rule of attnd's client for C++, in Python. Waiting is the clients'."""

from __future__ import annotations

import threading

from attnd._errors import Error, ResourceExhausted, Unavailable

ATTEMPTS = 5
# What changes nothing on the server, so that nobody can tell how often it was asked.
SAFE = frozenset({"Attend", "Plan", "Info", "GetTensor", "ListTensors", "GetWeightSet", "ListWeightSets"})

_FIRST_WAIT_S, _WAIT_S_MAX, _GROWTH, _JITTER = 0.1, 5.0, 2.0, 0.2
_TOKENS_MAX, _TOKENS_BACK = 10.0, 0.1


class Budget:
    """Of all calls of a client, so that they cannot make an overload worse: a failure takes a token, an answer gives a
    tenth back, and nothing is asked again unless more than half are there. From any thread."""

    def __init__(self) -> None:
        self._tokens = _TOKENS_MAX
        self._lock = threading.Lock()

    def failed(self) -> bool:
        """Takes a token. Whether enough are left for another attempt."""
        with self._lock:
            self._tokens = max(self._tokens - 1, 0.0)
            return self._tokens > _TOKENS_MAX / 2

    def answered(self) -> None:
        with self._lock:
            self._tokens = min(self._tokens + _TOKENS_BACK, _TOKENS_MAX)


class Retries:
    """The attempts of one call, which ends at `deadline` of some clock in seconds."""

    def __init__(self, attempts: int, budget: Budget, deadline: float) -> None:
        self._left = attempts
        self._budget = budget
        self._deadline = deadline
        self._wait_s = _FIRST_WAIT_S

    def seconds_left(self, now: float) -> float:
        return max(self._deadline - now, 0.0)

    def wait_after(self, error: Error, now: float, uniform: float) -> float | None:
        """An attempt failed at `now`: seconds to wait before the next one, or None where the error stands.

        uniform  a random number from 0 to below 1, which keeps callers apart
        """
        servers = error.retry_after_s
        if not isinstance(error, Unavailable) and not (isinstance(error, ResourceExhausted) and servers is not None):
            return None
        self._left -= 1
        if not self._budget.failed() or self._left < 1:
            return None
        wait = self._wait_s * (1 - _JITTER + 2 * _JITTER * uniform)
        if servers is not None:  # never made shorter
            wait = max(wait, servers * (1 + _JITTER * uniform))
        self._wait_s = min(self._wait_s * _GROWTH, _WAIT_S_MAX)
        return wait if now + wait < self._deadline else None
