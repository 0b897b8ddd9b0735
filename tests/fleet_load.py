"""Constant load on a fleet: clients that send to the hosts which `ops status --json` shows as admitted."""

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, Self

PORT = 8000
TOKENS = 200


class Load:
    """Use as a context manager; read the counters when it has ended.

    Attributes:
        answered: whole answers by host. cut: requests that were accepted and not answered in full. refused: connections
        refused to a client whose view was old; nothing was in flight. lowest: fewest hosts that took traffic at once.
    """

    def __init__(
        self,
        addresses: Mapping[str, str],
        status: Callable[[], Mapping[str, Any]],
        admitted: Callable[[str], object],
        *,
        clients: int,
        watch_s: float = 0.01,
    ) -> None:
        self._addresses, self._status, self._admitted, self._watch_s = addresses, status, admitted, watch_s
        self.known: list[str] = []
        self.lowest = len(addresses)
        self.answered = dict.fromkeys(addresses, 0)
        self.cut: list[str] = []
        self.refused = 0
        self.problems: list[str] = []
        self._stop = threading.Event()
        targets = [self._follow_status, self._watch, *[self._send] * clients]
        self._threads = [threading.Thread(target=self._guarded, args=(target,)) for target in targets]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        self.wait_for_answers(5)
        return self

    def __exit__(self, *why: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait_for_answers(self, count: int, within_s: float = 90) -> None:
        """Wait until every host that is known as admitted has given `count` more answers."""
        begin, deadline = dict(self.answered), time.monotonic() + within_s
        while not self.known or any(self.answered[name] < begin[name] + count for name in self.known):
            assert time.monotonic() < deadline, f"no answers within {within_s} s: {self.answered}, {self.problems}"
            time.sleep(0.05)

    def _guarded(self, target: Callable[[], None]) -> None:
        try:
            target()
        except Exception as error:
            self.problems.append(repr(error))
            raise

    def _follow_status(self) -> None:
        while not self._stop.is_set():
            self.known = [row["host"] for row in self._status()["hosts"] if row.get("admitted")]
            self._stop.wait(0.3)

    def _watch(self) -> None:
        """From outside `ops`: how many hosts are marked as taking traffic."""
        while not self._stop.is_set():
            self.lowest = min(self.lowest, sum(self._admitted(name) is not None for name in self._addresses))
            self._stop.wait(self._watch_s)

    def _send(self) -> None:
        turn = threading.get_ident()
        while not self._stop.is_set():
            names = self.known
            if not names:
                time.sleep(0.05)
                continue
            turn += 1
            name = names[turn % len(names)]
            try:
                tokens = _ask(self._addresses[name])
            except (OSError, ValueError) as error:
                reason = error.reason if isinstance(error, urllib.error.URLError) else error
                if isinstance(reason, ConnectionRefusedError):
                    self.refused += 1
                    time.sleep(0.1)
                else:
                    self.cut.append(f"{name}: {error!r}")
                continue
            if tokens == TOKENS:
                self.answered[name] += 1
            else:
                self.cut.append(f"{name}: {tokens} of {TOKENS} tokens")


def _ask(address: str) -> int:
    sampling = {"max_new_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    body = json.dumps({"text": "Say it.", "sampling_params": sampling}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://{address}:{PORT}/generate", body, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return int(json.load(answer)["meta_info"]["completion_tokens"])
