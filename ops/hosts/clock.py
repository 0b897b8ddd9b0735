"""Time as the host's engine counts it: the one place that knows about a sandbox's time scale."""

import time


class HostClock:
    """Engine seconds against wall seconds; on a real host they are the same."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def now_s(self) -> float:
        return time.monotonic() * self.scale

    def sleep_s(self, duration_s: float) -> None:
        time.sleep(duration_s / self.scale)

    def from_wall_s(self, wall_s: float) -> float:
        return wall_s * self.scale

    def to_wall_s(self, duration_s: float) -> float:
        return duration_s / self.scale
