"""No router: clients talk to the host itself. The host's `admitted` file says whether they should."""

from ops.model.ports import Host


class Router:
    """Keeps the admission mark on the host; whoever directs traffic reads it with `ops status --json`."""

    def drain(self, host: Host) -> None:
        host.call("lifecycle.hold", instance_dir=host.spec.instance_dir)

    def admit(self, host: Host, release: str) -> None:
        host.call("lifecycle.admit", instance_dir=host.spec.instance_dir, release=release)
