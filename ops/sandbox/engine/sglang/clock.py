"""Virtual time: everything the simulated server does takes virtual seconds, of which ``scale`` pass in a real one."""

import time


class Clock:
    """Seconds since the clock was made, times ``scale``. Deadlines are absolute, so waiting does not drift."""

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self._zero = time.monotonic()

    def now(self) -> float:
        return (time.monotonic() - self._zero) * self.scale

    def wall_until(self, virtual: float) -> float:
        """Return real seconds until the virtual moment (0 when it has passed)."""
        return max(0.0, (virtual - self.now()) / self.scale)
