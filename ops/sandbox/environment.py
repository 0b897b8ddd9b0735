"""The environment that every process of a sandbox starts with."""

from collections.abc import Mapping

from ops.sandbox.layout import MARKER, SSH_USER, Layout


def environment(layout: Layout, asked: Mapping[str, str] | None = None) -> dict[str, str]:
    """Minimal, as on a server; of a client's wishes (`asked`) only locale names are taken, as Debian's sshd does."""
    locale = {key: value for key, value in (asked or {}).items() if key == "LANG" or key.startswith("LC_")}
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": str(layout.home),
        "USER": SSH_USER,
        "LOGNAME": SSH_USER,
        "SHELL": "/bin/sh",
        MARKER: str(layout.folder),
        **locale,
    }
