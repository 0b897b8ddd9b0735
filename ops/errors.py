"""Every way `ops` can end, and the exit code that tells what is true of the hosts now.

OpsError                     message, hint, host
├── Refused                  2  nothing was touched
│   ├── ConfigError             a file in envs/ or a setting is wrong
│   ├── PreflightFailed         a check said no
│   ├── LockHeld                another run owns the host
│   └── Unreachable             no SSH, wrong host key, no permission
├── HostError                   a command on the host failed (the run undoes what it did)
│   ├── ConnectionLost          SSH broke in the middle
│   └── RemoteFailed            the agent's verb raised
├── StepFailed                  a step could not do its work
│   ├── PeerFailed              another host that serves the same model failed: this one goes back too
│   └── Judged                  carries the verdicts
│       ├── EngineDied              the engine ended while it should run
│       └── GateFailed              the gate did not pass
├── GuardActed                  the host's guard undid this run while it was going on
├── RolledBack               3  failed; the earlier state is proven
├── Unsafe                   4  rollback failed, or left to the guard
├── PartOfFleet              5
└── Interrupted            130  Ctrl-C or SIGTERM, restored
"""

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of every `ops` command; scripts act on these."""

    DONE = 0
    BUG = 1
    REFUSED = 2
    ROLLED_BACK = 3
    UNSAFE = 4
    PARTIAL = 5
    FOUND_WANTING = 6
    INCONCLUSIVE = 7
    INTERRUPTED = 130


class OpsError(Exception):
    """What happened (`message`), what to do next (`hint`), and where (`host`)."""

    exit_code: Exit = Exit.BUG

    def __init__(self, message: str, *, hint: str = "", host: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.host = host

    def __str__(self) -> str:
        where = f"{self.host}: " if self.host else ""
        return f"{where}{self.message}"


class Refused(OpsError):
    """Nothing was touched."""

    exit_code = Exit.REFUSED


class ConfigError(Refused):
    """A file under envs/, a setting or an argument is wrong; the message names file, key and value."""


class PreflightFailed(Refused):
    """A preflight check said no (or could not say yes)."""


class LockHeld(Refused):
    """Another run owns the host's lock."""


class Unreachable(Refused):
    """The host cannot be reached, proved or entered over SSH."""


class HostError(OpsError):
    """Something on the host failed."""


class ConnectionLost(HostError):
    """SSH broke and did not come back within the reconnect time."""


class RemoteFailed(HostError):
    """A verb of the agent raised; `kind` is the remote exception's class name, `code` one of `ops.remote.refusal`, the
    name of an operating system's error (ENOSPC), or `unexpected`."""

    def __init__(self, message: str, *, kind: str, code: str, hint: str = "", host: str = "") -> None:
        super().__init__(message, hint=hint, host=host)
        self.kind = kind
        self.code = code


class StepFailed(OpsError):
    """A step of the plan could not do its work."""


class PeerFailed(StepFailed):
    """Another host that serves the same model failed: what serves together is deployed and undone together."""


class Judged(StepFailed):
    """A step ended in a verdict; `report` is its `GateReport`."""

    def __init__(self, message: str, *, report: object, hint: str = "", host: str = "") -> None:
        super().__init__(message, hint=hint, host=host)
        self.report = report


class EngineDied(Judged):
    """The engine ended while it should run."""


class GateFailed(Judged):
    """The gate did not pass."""


class GuardActed(StepFailed):
    """The host's guard, a boot or another client undid this run."""


class RolledBack(OpsError):
    """The run failed and the earlier state is proven."""

    exit_code = Exit.ROLLED_BACK


class Unsafe(OpsError):
    """Nobody has proven what serves; a person must look, or the guard will act."""

    exit_code = Exit.UNSAFE


class PartOfFleet(OpsError):
    """Hosts of a fleet differ in outcome."""

    exit_code = Exit.PARTIAL


class Interrupted(OpsError):
    """Stopped by Ctrl-C or SIGTERM, and restored."""

    exit_code = Exit.INTERRUPTED
