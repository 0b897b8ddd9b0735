"""Ask many hosts at once: one thread a host, as many as are useful; SSH waits more than it computes."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ops.model.inventory import HostSpec

T = TypeVar("T")
MOST_AT_ONCE = 32


def each(hosts: Sequence[HostSpec], ask: Callable[[HostSpec], T]) -> list[T]:
    """`ask` every host, in parallel; answers in the hosts' order. Raises: what the first failing `ask` raised."""
    if len(hosts) == 1:
        return [ask(hosts[0])]
    with ThreadPoolExecutor(min(len(hosts), MOST_AT_ONCE), thread_name_prefix="ops-host") as pool:
        return list(pool.map(ask, hosts))
