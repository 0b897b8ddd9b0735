"""The agent: answers requests on stdin with JSON lines on stdout for as long as the SSH channel lives.

Request `{"id", "verb": "module.function", "args": {}}`; answers `{"id", "event"}`*, then `{"id", "result"}` or
`{"id", "error": {"kind", "code", "message", "data"}}` (codes: `ops.remote.refusal`). Each request has a thread of its
own, so a heartbeat is answered while a long verb streams. When stdin ends, the client is gone and the agent goes as
well.
"""

import importlib
import json
import os
import sys
import threading

from ops.remote import keys, lock
from ops.remote.refusal import VerbError, code_of

MODULES = (
    "deployed",
    "engine_client",
    "facts",
    "files",
    "guard",
    "journal",
    "lifecycle",
    "lock",
    "machine",
    "stack",
    "store",
    "venv",
    "watch",
)


def _real_paths(arguments):
    """Folders as the engine's processes see them, so that the marker in their environment compares."""
    real = dict(arguments)
    if "instance_dir" in real:
        real["instance_dir"] = os.path.realpath(real["instance_dir"])
    if "supervisor" in real:
        real["supervisor"] = _real_paths(real["supervisor"])
    return real


def _module(name):
    return importlib.import_module(f"ops.remote.{name}")


def _fenced(arguments):
    """A verb that changes something is for the run that owns the host, and for nobody after it was undone."""
    run = arguments.pop("fence", None)
    if run is not None:
        lock.require(arguments["instance_dir"], run)


def main():
    os.umask(0o022)  # the login's may be 077, and the engine's own user must be able to enter our folders
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # a stray print of any library must not break the protocol
    write_lock = threading.Lock()
    secrets: "set[bytes]" = set()  # as JSON shows them; the engine itself prints its keys into its log

    def send(message):
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        for secret in secrets:
            line = line.replace(secret, b"***")
        with write_lock:
            view = memoryview(line)
            while view:
                view = view[out.write(view) :]

    def answer(request):
        number = request["id"]
        try:
            module, _, function = request["verb"].partition(".")
            if module not in MODULES or function.startswith("_"):
                raise VerbError(f"no such verb: {request['verb']}", code="no-verb")
            arguments = _real_paths(request["args"])
            _fenced(arguments)
            if "instance_dir" in arguments:
                secrets.update(keys.secret_values(arguments["instance_dir"]))
            verb = getattr(_module(module), function)
            result = verb(lambda event: send({"id": number, "event": event}), **arguments)
            send({"id": number, "result": result})
        except BrokenPipeError:
            os._exit(0)
        except Exception as error:
            told = {"kind": type(error).__name__, "code": code_of(error), "message": str(error)}
            send({"id": number, "error": {**told, "data": getattr(error, "data", {})}})

    send({"hello": {"pid": os.getpid(), "uid": os.getuid(), "python": sys.version.split()[0]}})
    for line in iter(sys.stdin.buffer.readline, b""):
        threading.Thread(target=answer, args=(json.loads(line),), daemon=True).start()
    os._exit(0)
