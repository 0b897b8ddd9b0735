"""The process of the fault `orphan-on-port`: takes the engine's port from a new release, and answers like the old one.

Runs alone under the sandbox's Python (standard library only): `orphan.py SETTINGS.json`. While an engine listens it
copies that engine's answers. It strikes when a new candidate's process exists and the port is free: the stop proof
is over by then, and an engine binds only after its load. It leaves when that release is being undone (unless told to
stay), because a fault never strikes what a rollback starts.
"""

import contextlib
import json
import socket
import socketserver
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COPIED = (
    "/server_info",
    "/get_server_info",
    "/model_info",
    "/get_model_info",
    "/v1/models",
    "/v1/loads",
    "/health",
    "/ready",
    "/metrics",
)
ASKED: dict[str, dict[str, Any]] = {
    "/generate": {"text": "The", "sampling_params": {"temperature": 0, "max_new_tokens": 4}},
    "/v1/completions": {"model": "default", "prompt": "The", "max_tokens": 4, "temperature": 0},
    "/v1/chat/completions": {
        "model": "default",
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 4,
        "temperature": 0,
    },
}
CANDIDATE_COMMANDS = ("deploy", "start", "restart")

Answer = tuple[int, str, bytes]


class _Server(ThreadingHTTPServer):
    allow_reuse_address = True

    def server_bind(self) -> None:
        # HTTPServer's own asks the name service for a host name between bind and listen.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]


class Orphan:
    """Waits, strikes, serves, leaves; its state is in the settings file, replaced at each change."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._settings: dict[str, Any] = json.loads(file.read_text())
        self._address: str = self._settings["address"]
        self._port: int = self._settings["port"]
        self._root = Path(self._settings["root"])
        self._marker: bytes = self._settings["marker"].encode(errors="surrogateescape")
        self.answers: dict[str, Answer] = {}

    def run(self) -> None:
        release = self._wait_for_victim()
        server = _Server((self._address, self._port), _handler(self.answers), bind_and_activate=False)
        try:
            server.server_bind()
            server.server_activate()
        except OSError as error:
            self._say(state="missed", release=release, reason=f"the port was taken first: {error}")
            return
        struck_at = time.time()
        self._say(state="serving", release=release, struck_at=struck_at)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        while self._settings["until"] == "cleared" or not self._is_undone(release, struck_at):
            time.sleep(0.01)
        server.socket.close()
        self._say(state="left", left_at=time.time())

    def _wait_for_victim(self) -> str:
        copied: int | None = None
        free_since: float | None = None
        while True:
            inode = self._listener()
            if inode is not None:
                free_since = None
                if inode != copied and self._copy_answers():
                    copied = inode
                time.sleep(0.02)
                continue
            release = self._candidate()
            if release is not None:
                return release
            now = time.monotonic()
            free_since = free_since or now
            time.sleep(0.005 if now - free_since < 5 else 0.05)

    def _copy_answers(self) -> bool:
        answers: dict[str, Answer] = {}
        for path in COPIED:
            answers[path] = self._ask(path, None)
        if answers["/server_info"][0] != 200:
            return False
        for path, body in ASKED.items():
            answers[path] = self._ask(path, body)
        self.answers.clear()
        self.answers.update(answers)
        self._say(copied_at=time.time())
        return True

    def _ask(self, path: str, body: dict[str, Any] | None) -> Answer:
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(
            f"http://{self._address}:{self._port}{path}", data=data, headers={"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.headers.get("Content-Type", ""), answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.headers.get("Content-Type", ""), error.read()
        except OSError:
            return 0, "", b""

    def _candidate(self) -> str | None:
        """Release of an engine that is starting now as a candidate; None when nothing or something else starts."""
        for environment in self._engines():
            release = environment.get("OPS_RELEASE", "")
            instance = environment.get("OPS_INSTANCE_DIR")
            journal = _events(Path(instance) / "journal.jsonl") if instance else []
            starts = [event for event in journal if event.get("event") == "run-started"]
            if not starts:
                return release
            last = starts[-1]
            if (
                last.get("command") in CANDIDATE_COMMANDS
                and last.get("purpose") == "candidate"
                and last.get("release") == release
                and not _recovering(journal, after=float(last.get("at", 0)))
            ):
                return release
        return None

    def _engines(self) -> Iterator[dict[str, str]]:
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes()
                if b"sglang.launch_server" not in command.split(b"\0"):
                    continue
                variables = (entry / "environ").read_bytes().split(b"\0")
                if self._marker in variables:
                    pairs = (variable.decode(errors="replace").partition("=") for variable in variables)
                    yield {name: value for name, _, value in pairs}

    def _listener(self) -> int | None:
        address = int.from_bytes(socket.inet_aton(self._address), "little")
        wanted = {f"{address:08X}:{self._port:04X}", f"00000000:{self._port:04X}"}
        with Path("/proc/net/tcp").open() as table:
            for line in table:
                fields = line.split()
                if fields[3] == "0A" and fields[1] in wanted:
                    return int(fields[9])
        return None

    def _is_undone(self, release: str, struck_at: float) -> bool:
        """Whether the release that was struck is being undone: a recovery step, the end of its run, another link."""
        for instance in self._root.iterdir():
            if not (instance / "releases" / release).exists():
                continue
            current = instance / "current"
            if current.is_symlink() and current.readlink().name != release:
                return True
            if _recovering(_events(instance / "journal.jsonl"), after=struck_at):
                return True
        return False

    def _say(self, **news: Any) -> None:
        self._settings.update(news)
        temporary = self._file.with_suffix(".new")
        temporary.write_text(json.dumps(self._settings))
        temporary.replace(self._file)


def _events(journal: Path) -> list[dict[str, Any]]:
    events = []
    try:
        lines = journal.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    for line in lines:
        # The last line may be half written.
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            if isinstance(event, dict):
                events.append(event)
    return events


def _recovering(events: list[dict[str, Any]], *, after: float) -> bool:
    for event in events:
        if float(event.get("at", 0)) >= after:
            kind = event.get("event")
            if kind in ("run-ended", "restored", "fallback") or (kind == "step-started" and event.get("recovery")):
                return True
    return False


def _handler(answers: dict[str, Answer]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._reply()

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self._reply()

        def _reply(self) -> None:
            path = self.path.partition("?")[0]
            status, kind, body = answers.get(path, (404, "application/json", b'{"detail":"Not Found"}'))
            if path in ("/health", "/ready") and status == 404:
                status, body = 200, b""
            self.send_response(status or 503)
            self.send_header("Content-Type", kind or "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            print(self.log_date_time_string(), format % args, flush=True)

    return Handler


if __name__ == "__main__":
    Orphan(Path(sys.argv[1])).run()
