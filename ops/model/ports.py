"""The seams between the parts: what a step may use of a host, a router and the operator's terminal."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from ops.model.gate import Clock
from ops.model.inventory import HostSpec

Event = Mapping[str, Any]


class Host(Protocol):
    """A host and the verbs of the agent there. Every verb may be repeated. `wait_s` bounds the answer, wall time."""

    name: str
    spec: HostSpec

    @property
    def clock(self) -> Clock: ...

    def call(
        self,
        verb: str,
        *,
        wait_s: float = 30.0,
        on_event: Callable[[Event], None] | None = None,
        on_reconnect: Callable[[str], None] | None = None,
        patience_s: float = 0.0,
        **args: Any,
    ) -> Any: ...

    def fresh(self) -> AbstractContextManager["Host"]:
        """A second, new connection: proof that the host can be reached by whoever comes next."""
        ...

    def close(self) -> None: ...


class Router(Protocol):
    """What sends traffic to a host."""

    def drain(self, host: Host) -> None:
        """Send no new request; requests in flight may end."""
        ...

    def admit(self, host: Host, release: str) -> None:
        """Send traffic, and verify that a request through the router is answered by `release`."""
        ...


class Peers(Protocol):
    """The other hosts that serve the same model, as one member's run sees them (`ops.fleet.member`)."""

    @property
    def broken(self) -> str:
        """Why the members do not go forward together any more; empty while they do."""
        ...

    def meet(self, point: str, word: str = "") -> Mapping[str, str]:
        """Wait until every member is at `point`; what each of them said, by host. Raises: PeerFailed."""
        ...

    def begin(self) -> None:
        """A transaction begins."""
        ...

    def step(self, kind: str, *, recovering: bool) -> AbstractContextManager[None]:
        """Around each step of a plan: meets the others where a step needs them. Raises: PeerFailed, also inside."""
        ...

    def going_back(self, reason: str) -> None:
        """This member failed, or was told that another did: from here on it undoes."""
        ...

    def may_admit(self) -> bool:
        """Whether traffic may come: not while the release is confirmed here but may not be on every host."""
        ...


class Reporter(Protocol):
    """What the operator sees while a run goes on (standard error)."""

    def say(self, host: str, text: str) -> None: ...

    def step(self, host: str, kind: str, detail: str) -> None: ...

    def phase(self, host: str, name: str, elapsed_s: float, expected_s: float | None) -> None:
        """A load phase: engine seconds since the start, and how long the last start on this host took."""
        ...
