"""A rollout as waves: which hosts go together, and what is waited for between them. Pure.

Invariant: no wave is larger than `max_unavailable`, so a wave that goes wrong as a whole stays within the budget.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ops.model.profile_parts import Rollout

CANARY = "canary"


@dataclass(frozen=True)
class Wave:
    """Hosts that are out of traffic at the same time.

    Attributes: batch: `canary`, or `batch N` of the rollout. opens: the first wave of its batch. closes: the last.
    """

    batch: str
    size: int
    opens: bool
    closes: bool


def waves(rollout: Rollout, hosts: int) -> tuple[Wave, ...]:
    """Cut `hosts` into waves: the canary, then each batch (hosts, or per cent of all hosts, at least one), each batch
    in pieces of `max_unavailable`. What the batches leave over is one more batch."""
    found: list[Wave] = []
    left = hosts
    for name, size in _batches(rollout, hosts):
        taken = min(size, left)
        left -= taken
        found += _pieces(name, taken, rollout.max_unavailable)
    return tuple(found)


def _batches(rollout: Rollout, hosts: int) -> Iterator[tuple[str, int]]:
    if rollout.canary:
        yield CANARY, rollout.canary
    for number, batch in enumerate(rollout.batches, 1):
        yield f"batch {number}", max(1, int(batch[:-1]) * hosts // 100) if batch.endswith("%") else int(batch)
    yield f"batch {len(rollout.batches) + 1}", hosts


def _pieces(batch: str, hosts: int, limit: int) -> list[Wave]:
    sizes = [min(limit, hosts - start) for start in range(0, hosts, limit)]
    return [Wave(batch, size, index == 0, index == len(sizes) - 1) for index, size in enumerate(sizes)]


def wave_of(found: Sequence[Wave], position: int) -> Wave:
    """The wave that begins with the host at `position` (counted from 0 in the roll's order).

    Raises: ValueError when no wave begins there.
    """
    start = 0
    for wave in found:
        if start == position:
            return wave
        start += wave.size
    raise ValueError(f"no wave of the rollout begins at host {position}; they have {[w.size for w in found]} hosts")
