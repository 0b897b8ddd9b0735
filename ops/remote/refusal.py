"""What a verb says when it will not, or could not: one sentence for people and a code for programs.

A decision hangs on the code alone, so a sentence may be made clearer at any time; a code never changes its meaning.
"""

import errno

CODES = {
    "arrived-changed": "what was sent arrived with other contents",
    "armed-for-another": "the host is armed for another run",
    "command-failed": "a program that the verb needs ended with an error",
    "command-timeout": "a program that the verb needs did not end in time",
    "docker-failed": "Docker does not do what it was asked for",
    "docker-missing": "there is no Docker client on the host",
    "docker-timeout": "Docker did not answer in time",
    "engine-not-started": "the supervisor did not start the engine",
    "gpu-containers": "a reload of systemd could take the GPUs away from other people's containers",
    "gpu-unknown": "nobody knows whether GPU memory is free",
    "guard-busy": "the guard is going back from an earlier run's release",
    "guard-not-running": "nobody would undo the release at its deadline",
    "image-missing": "an image is not on the host and no registry is known for it",
    "newer-version": "a newer ops wrote a file of the host",
    "no-release": "a release is not on the host",
    "no-verb": "the agent has no such verb",
    "not-owner": "the run does not own the host, or does not any more",
    "pull-failed": "an image could not be pulled",
    "pull-timeout": "pulling an image did not end in time",
    "python-missing": "the host has no Python of the version that a lock needs",
    "rebooted": "the host booted since the run armed it, which undoes the run",
    "still-held": "the engine is stopped, but a port or GPU memory is held",
    "supervisor-missing": "the host has no configuration of its supervisor",
    "supervisor-silent": "the supervisor does not answer",
    "survives-kill": "processes of the engine survive SIGKILL",
    "systemctl-failed": "systemctl ended with an error",
    "undoing": "the guard is undoing the run right now",
    "undone": "the guard has undone the run",
    "unfinished-install": "another run still installs into the same environment",
    "wrong-image": "a registry's image is not the one that was locked",
}
"""Every code of a `VerbError`, and when it is given."""
HOST_TAKEN = frozenset({"not-owner", "rebooted", "undoing", "undone"})
"""The host is not the run's any more: the guard, a boot or another client took it."""


class VerbError(Exception):
    """A verb's refusal that the client understands. Args: code: one of `CODES`. data: JSON-able."""

    def __init__(self, message, *, code, **data):
        super().__init__(message)
        self.code = code
        self.data = data


def code_of(error):
    """The code under which any exception is told: a refusal's own, the name of an operating system's error (ENOSPC),
    or `unexpected`."""
    if isinstance(error, VerbError):
        return error.code
    number = error.errno if isinstance(error, OSError) else None
    return errno.errorcode.get(number or 0, "unexpected")
