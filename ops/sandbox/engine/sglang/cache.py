"""A prefix cache: which leading tokens of a prompt were seen before."""

from collections.abc import Sequence


class PrefixCache:
    """Remembers every prefix of what it was given. Full, it starts anew, as an eviction of everything."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._seen: set[int] = set()
        # Set by a fault: every prompt counts as seen until the cache is flushed.
        self.warm = False

    def __len__(self) -> int:
        return len(self._seen)

    def match(self, ids: Sequence[int]) -> int:
        """Return how many leading tokens are cached; the last token of a prompt is always computed."""
        if self.warm:
            return max(0, len(ids) - 1)
        matched = 0
        for key in _keys(ids[:-1]):
            if key not in self._seen:
                break
            matched += 1
        return matched

    def insert(self, ids: Sequence[int]) -> None:
        if len(self._seen) + len(ids) > self._capacity:
            self._seen.clear()
        self._seen.update(_keys(ids))

    def flush(self) -> None:
        self._seen.clear()
        self.warm = False


def _keys(ids: Sequence[int]) -> list[int]:
    keys: list[int] = []
    key = 0
    for token in ids:
        key = hash((key, token))
        keys.append(key)
    return keys
