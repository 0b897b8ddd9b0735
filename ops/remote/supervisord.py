"""supervisord, over its own socket: for hosts with no systemd."""

import configparser
import http.client
import os
import socket
import xmlrpc.client

from ops.remote import processes, programs
from ops.remote.refusal import VerbError

_STATES = {  # supervisor.states.ProcessStates
    "STOPPED": "stopped",
    "EXITED": "stopped",
    "STARTING": "starting",
    "BACKOFF": "starting",
    "RUNNING": "running",
    "STOPPING": "running",
    "FATAL": "failed",
    "UNKNOWN": "failed",
}
_NOT_RUNNING = 70  # supervisor.xmlrpc.Faults
_BAD_NAME = 10
_ALREADY_STARTED = 60


class _UnixTransport(xmlrpc.client.Transport):
    def __init__(self, path, timeout_s):
        super().__init__()
        self._path = path
        self._timeout_s = timeout_s

    def make_connection(self, host):
        connection = http.client.HTTPConnection("localhost", timeout=self._timeout_s)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(self._timeout_s)
        sock.connect(self._path)
        connection.sock = sock
        return connection


class Supervisor:
    """Programs `engine-<instance>` and `guard-<instance>` of one supervisord."""

    def __init__(self, *, instance, instance_dir, conf):
        self.instance_dir = instance_dir
        self.conf = conf
        self.engine = f"engine-{instance}"
        self.guard = f"guard-{instance}"

    def _rpc(self, timeout_s=10.0):
        parser = configparser.RawConfigParser(inline_comment_prefixes=(";",))
        if not parser.read(self.conf):
            raise VerbError(f"no supervisord configuration at {self.conf}", code="supervisor-missing")
        path = parser.get("unix_http_server", "file").replace("%(here)s", os.path.dirname(self.conf))
        try:
            transport = _UnixTransport(path, timeout_s)
            server = xmlrpc.client.ServerProxy("http://localhost", transport=transport)
            server.supervisor.getState()
        except OSError as error:
            raise VerbError(f"supervisord does not answer on {path}: {error}", code="supervisor-silent") from error
        return server.supervisor

    def _update(self, rpc, program):
        """Make supervisord know the program file as it is now; a changed program is stopped and replaced."""
        added, changed, removed = rpc.reloadConfig()[0]
        for name in removed:
            if name == program:
                rpc.stopProcessGroup(name)
                rpc.removeProcessGroup(name)
        if program in changed:
            rpc.stopProcessGroup(program)
            rpc.removeProcessGroup(program)
        if program in changed or program in added:
            rpc.addProcessGroup(program)

    def install(self, release):
        self._update(self._rpc(60.0), self.engine)

    def install_guard(self, changed):
        rpc = self._rpc(60.0)
        self._update(rpc, self.guard)
        running = rpc.getProcessInfo(self.guard)["statename"] in ("RUNNING", "STARTING")
        if running and changed:
            rpc.stopProcess(self.guard)
            running = False
        if not running:
            _tolerating(_ALREADY_STARTED, rpc.startProcess, self.guard)

    def start(self):
        _tolerating(_ALREADY_STARTED, self._rpc(30.0).startProcess, self.engine, False)

    def stop(self, timeout_s):
        try:
            self._rpc(timeout_s + 30.0).stopProcess(self.engine)
        except xmlrpc.client.Fault as fault:
            if fault.faultCode not in (_NOT_RUNNING, _BAD_NAME):
                raise

    def state(self):
        try:
            info = self._rpc().getProcessInfo(self.engine)
        except xmlrpc.client.Fault as fault:
            if fault.faultCode != _BAD_NAME:
                raise
            return {"state": "absent", "pid": None, "started_at": None, "enabled": False, "detail": "no such program"}
        pid = info["pid"] or None
        return {
            "state": _STATES[info["statename"]],
            "pid": pid,
            "started_at": processes.started_at(pid) if pid else None,
            "enabled": self._wanted(),
            "detail": info["spawnerr"] or info["description"],
        }

    def _wanted(self):
        try:
            with open(os.path.join(self.instance_dir, "guard", "wanted"), encoding="utf-8") as file:
                return file.read().strip() == "running"
        except FileNotFoundError:
            return False

    def arm(self, deadline_s):
        """The guard program reads the deadline itself; it must be running."""
        if self._rpc().getProcessInfo(self.guard)["statename"] not in ("RUNNING", "STARTING"):
            raise VerbError(
                "the guard program does not run under supervisord, so nobody would undo this release",
                code="guard-not-running",
            )

    def disarm(self):
        """Nothing is left running: the guard follows the marker files."""

    def inspect(self):
        return programs.inspect(self._rpc(30.0), self.conf, self.instance_dir, self.engine, self.guard)

    def boot_id(self):
        pid = self._rpc().getPID()
        return f"{pid}:{processes.stat(pid)['starttime']}"


def _tolerating(code, call, *args):
    try:
        call(*args)
    except xmlrpc.client.Fault as fault:
        if fault.faultCode != code:
            raise
