"""A member's line to the command that leads an ensemble. Implements `ops.model.ports.Peers`.

Each member's work is a process of its own, so that signals and a broken connection end it as they end `ops` on one
host. Members meet where a step on one host means something on another: nobody stops before all are drained, nobody
starts before all have stopped, nobody confirms before all are judged.
"""

import json
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ops.errors import PeerFailed

Message = Mapping[str, Any]

MEETINGS = ("arm", "stop", "start", "gate", "judged", "confirm", "admit")
"""Where members meet, in order. `judged`: rank 0 has passed its gate, so the others are asked what is left of them."""
_BACK = frozenset({"stop", "start", "gate", "judged"})
_STOPPABLE = frozenset({"stage", "arm", "drain", "activate", "start", "gate"})
"""Steps that end at once when another member fails; half a stop helps nobody. From `confirm` on a member looks only
where it meets the others."""


class Member:
    """One member, as its process sees the others."""

    def __init__(self, line: socket.socket, host: str, *, leader: bool) -> None:
        self.broken = ""
        self._line = line
        self._host = host
        self._leader = leader
        self._rest = b""
        self._back = False
        self._whole = False  # all have confirmed
        self._alone = False  # this one has; whether all have is not known
        self._stoppable = False
        self._pending = False
        signal.signal(signal.SIGUSR1, self._told)

    def send(self, message: Message) -> None:
        """Say something to who leads; nobody listening is no reason to stop restoring a host."""
        try:
            self._line.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return

    def meet(self, point: str, word: str = "") -> Mapping[str, str]:
        self.send({"meet": point, "word": word, "back": self._back})
        while (message := self._next()) is not None:
            if "broken" in message and not self._back:
                self.broken = str(message["broken"])
                raise PeerFailed(self.broken, host=self._host)
            if message.get("met") == point and message["back"] == self._back:
                words: Mapping[str, str] = message["words"]
                return words
        if not self._back:
            raise PeerFailed("the command that led all hosts ended", host=self._host)
        return {self._host: word}  # on the way back each does what it can

    def begin(self) -> None:
        if not self._back:
            self._whole = self._alone = False

    @contextmanager
    def step(self, kind: str, *, recovering: bool) -> Iterator[None]:
        # What a dead run left is undone on each host for itself, before anything is done together.
        together = self._back or not recovering
        if together and kind in (_BACK if self._back else MEETINGS):
            self.meet(kind)
            if kind == "admit":
                self._whole, self._alone = True, False
        if together and kind == "gate" and not self._leader:
            self.meet("judged")
        self._stoppable = together and not self._back and kind in _STOPPABLE
        try:
            if self._pending and self._stoppable:  # told between two steps
                self._stop()
            yield
            if self._back:
                self._alone = self._alone and kind != "start"
            else:
                self._alone = self._alone or (together and kind == "confirm")
        finally:
            self._stoppable = False
        if together and kind == "gate" and self._leader:
            self.meet("judged")

    def going_back(self, reason: str) -> None:
        self._stoppable = False
        if not self._whole:
            self.broken = self.broken or reason
        if not self._back:
            self._back = True
            self.send({"back": reason})

    def may_admit(self) -> bool:
        return not self._alone

    def _told(self, number: int, frame: FrameType | None) -> None:
        """Another member failed. Whoever waits for a meeting reads it there; a step that takes long ends here."""
        self._pending = True
        if self._stoppable:
            self._stop()

    def _stop(self) -> None:
        self._stoppable = False
        message = self._next()
        self.broken = str((message or {}).get("broken") or "another host failed")
        raise PeerFailed(self.broken, host=self._host)

    def _next(self) -> Message | None:
        """The next message; None when nobody leads any more."""
        while b"\n" not in self._rest:
            try:
                data = self._line.recv(65536)
            except OSError:
                return None
            if not data:
                return None
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        found: Message = json.loads(line)
        return found
