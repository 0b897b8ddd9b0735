"""Ctrl-C and SIGTERM while a host is owned: the first one undoes, the second one leaves at once.

Invariant: a signal raises `KeyboardInterrupt` only where that is wanted. One that arrives while the run is going back
is noted and answered on standard error; only the second is raised there.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_NEVER = 0


class Interrupts:
    """How many signals came, and which of them is raised."""

    def __init__(self) -> None:
        self.count = 0
        self._raised_at = 1

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count == self._raised_at:
            raise KeyboardInterrupt
        if self.count == 1:
            # Not print(): the signal may have interrupted one.
            os.write(2, b"interrupted: going back is under way; once more leaves it to the guard\n")

    @contextmanager
    def recovering(self) -> Iterator[None]:
        """Inside, only the second signal is raised, also one that came just before."""
        before, self._raised_at = self._raised_at, 2
        try:
            if self.count >= 2:
                raise KeyboardInterrupt
            yield
        finally:
            if self._raised_at != _NEVER:
                self._raised_at = before

    def defer(self) -> None:
        """Raise none from here on: what is left to do is a matter of milliseconds."""
        self._raised_at = _NEVER


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Handle SIGINT and SIGTERM for the length of the block. Only the main thread may set handlers; in others the
    object is inert and the caller's handlers stay."""
    found = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield found
        return
    before = {number: signal.signal(number, found) for number in _SIGNALS}
    try:
        yield found
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
