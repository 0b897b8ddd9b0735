"""One server over several nodes: how its ranks find one another, and what becomes of the others when some are gone.

Rank 0's node listens on ``--dist-init-addr``, as torch's store does; the others connect. The connections stay open for
the server's life, as gloo's do: when one closes, both sides end. A rank that died while its launcher lives closes
nothing: then a collective hangs.

Source: SGLang 0.5.23 srt/entrypoints/engine.py:1015-1297, srt/utils/common.py:3624 (dummy health server);
https://github.com/sgl-project/sglang/issues/3099 (node 0 goes on when a rank of node 1 failed).
"""

import http.server
import json
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

from . import logs
from .clock import Clock
from .ranks import Ranks
from .resolve import Plan

STORE_TIMEOUT_S = 600.0
"""Virtual seconds that ranks wait for one another: torch's default for a TCP store with its margin."""
STOP_S = 15.0
POLL_WALL_S = 0.05
HEALTH_PATHS = ("/ping", "/health", "/health_generate")

Check = Callable[[], None]


class Closed(Exception):
    """A connection to another node ended."""

    def __init__(self, peer: str) -> None:
        super().__init__(
            "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] "
            f"Connection closed by peer [{peer}]"
        )


class NotJoined(Exception):
    """Not all nodes came together."""


class Nodes:
    """The other nodes of one server; none of them when it runs on one."""

    def __init__(self, plan: Plan, clock: Clock) -> None:
        self._plan, self._clock = plan, clock
        self._peers: list[_Peer] = []

    def join(self, environments: Sequence[Mapping[str, str]], check: Check) -> Sequence[Mapping[str, str]]:
        """Wait for all nodes; return every rank's NCCL settings (on other nodes than rank 0's: the own ones).

        Raises:
            NotJoined: when they are not complete in time, or the address cannot be bound.
        """
        if self._plan.nodes == 1:
            return environments
        host, _, port = str(self._plan.arguments["dist_init_addr"]).rpartition(":")
        where = (host.strip("[]"), int(port))
        deadline = self._clock.now() + STORE_TIMEOUT_S
        if self._plan.node_rank > 0:
            self._connect(where, environments, deadline, check)
            return environments
        return [*environments, *self._accept(where, deadline, check)]

    def _accept(self, where: tuple[str, int], deadline: float, check: Check) -> list[Mapping[str, str]]:
        try:
            listener = socket.create_server(where)
        except OSError as error:
            raise NotJoined(
                "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network "
                f"address. port: {where[1]}, useIpv6: false, code: -{error.errno}, name: EADDRINUSE, message: "
                "address already in use"
            ) from error
        others: dict[int, list[Mapping[str, str]]] = {}
        with listener:
            listener.settimeout(POLL_WALL_S)
            while len(others) < self._plan.nodes - 1:
                check()
                if self._clock.now() > deadline:
                    raise NotJoined(
                        f"torch.distributed.DistStoreError: Timed out after {STORE_TIMEOUT_S + 1:.0f} seconds waiting "
                        f"for clients. {1 + len(others)}/{self._plan.nodes} clients joined."
                    )
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                peer = _Peer(connection)
                hello = peer.wait(check)
                if (hello["nodes"], hello["ranks"]) == (self._plan.nodes, self._plan.ranks):
                    others[int(hello["node_rank"])] = hello["environments"]
                    self._peers.append(peer)
                else:
                    peer.close()
        self._tell("joined")
        return [environment for node in sorted(others) for environment in others[node]]

    def _connect(
        self, where: tuple[str, int], environments: Sequence[Mapping[str, str]], deadline: float, check: Check
    ) -> None:
        while not self._peers:
            check()
            try:
                self._peers.append(_Peer(socket.create_connection(where, timeout=5.0)))
            except OSError as error:
                if self._clock.now() > deadline:
                    raise NotJoined(
                        f"torch.distributed.DistNetworkError: The client socket has timed out after "
                        f"{STORE_TIMEOUT_S * 1000:.0f}ms while trying to connect to ({where[0]}, {where[1]})."
                    ) from error
                time.sleep(POLL_WALL_S)
        plan = self._plan
        hello = {"nodes": plan.nodes, "ranks": plan.ranks, "node_rank": plan.node_rank, "environments": environments}
        self._peers[0].send(hello)
        self._peers[0].wait(check)

    def together(self, check: Check) -> None:
        """Wait until every node is here, as a collective does.

        Raises:
            Closed: when a node is gone.
        """
        if self._plan.node_rank > 0:
            self._tell("here")
        for peer in self._peers:
            peer.wait(check)
        if self._plan.node_rank == 0:
            self._tell("here")

    def check(self) -> None:
        """Raises: Closed, when a node is gone."""
        for peer in self._peers:
            peer.look()

    def news(self) -> str | None:
        """Return what another node said since the last call: ``stuck`` or ``shutdown``.

        Raises:
            Closed: when a node is gone.
        """
        for peer in self._peers:
            peer.look()
            if peer.messages:
                return str(peer.messages.pop(0)["say"])
        return None

    def say_stuck(self) -> None:
        """A rank of this node died unnoticed: the next collective of the others will hang."""
        self._tell("stuck")

    def shut_down(self) -> None:
        """Rank 0 has drained: its ShutdownReq reaches the schedulers of every node."""
        self._tell("shutdown")

    def _tell(self, word: str) -> None:
        for peer in self._peers:
            peer.send({"say": word})


class _Peer:
    """A connection to another node: JSON lines."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._rest = b""
        self.messages: list[dict[str, Any]] = []
        name = connection.getpeername()
        self._name = f"{name[0]}:{name[1]}"

    def send(self, message: Mapping[str, Any]) -> None:
        try:
            self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:  # its end shows where it is looked at
            return

    def look(self, wait_s: float = 0.0) -> None:
        """Take what has come. Raises: Closed."""
        while select.select([self._connection], [], [], wait_s)[0]:
            try:
                data = self._connection.recv(65536)
            except OSError:
                data = b""
            if not data:
                raise Closed(self._name)
            *lines, self._rest = (self._rest + data).split(b"\n")
            self.messages += [json.loads(line) for line in lines]
            wait_s = 0.0

    def wait(self, check: Check) -> dict[str, Any]:
        """Return the next message. Raises: Closed."""
        while not self.messages:
            check()
            self.look(POLL_WALL_S)
        return self.messages.pop(0)

    def close(self) -> None:
        self._connection.close()


def follow(plan: Plan, ranks: Ranks, nodes: Nodes, clock: Clock, fail: Callable[[str], None]) -> int:
    """Be a node whose rank is not 0 from the end of its load to its end; return the exit status.

    Nothing here looks at the schedulers but ``join``, one after the other, so a later one may be dead for long while
    the dummy health server says 200. ``fail``: ends the process as after a scheduler's exception.
    """

    def sigterm(number: int, frame: FrameType | None) -> None:
        logs.line(
            f"SIGTERM received on node_rank {plan.node_rank}; waiting for the rank-0 ShutdownReq broadcast to stop the "
            "schedulers."
        )

    signal.signal(signal.SIGTERM, sigterm)
    serve_dummy_health(str(plan.arguments["host"]), int(plan.arguments["port"]))
    joined, stuck = 0, False
    while joined < len(ranks.schedulers):
        time.sleep(max(POLL_WALL_S, 1.0 / clock.scale))
        try:
            if nodes.news() == "shutdown":
                ranks.stop_schedulers(max(1.0, STOP_S / clock.scale))
        except Closed as closed:
            fail(str(closed))
        if not stuck and ranks.first_dead() is not None:
            stuck = True
            nodes.say_stuck()
        while joined < len(ranks.schedulers) and ranks.schedulers[joined].process.poll() is not None:
            process = ranks.schedulers[joined].process
            logs.line(f"Scheduler or DataParallelController {process.pid} terminated with {process.returncode}")
            joined += 1
    return 0


def serve_dummy_health(host: str, port: int) -> None:
    """Answer 200 on the health paths, whatever is true, from a thread of its own."""
    try:
        server = http.server.ThreadingHTTPServer((host, port), _Dummy)
    except OSError as error:
        logs.line(f"Dummy health check server failed to start: {error}")
        return
    logs.line(f"Dummy health check server started in background thread at {host}:{port}")
    threading.Thread(target=server.serve_forever, daemon=True).start()


class _Dummy(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        found = self.path.partition("?")[0] in HEALTH_PATHS
        body = b"" if found else b'{"detail":"Not Found"}'
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """The real one logs warnings only."""
