"""`ops history`, `ops releases`, `ops logs`: reading, never taking the lock."""

from collections.abc import Callable
from typing import Any

from ops.errors import ConfigError
from ops.flows.hosts import connected
from ops.model.inventory import HostSpec
from ops.model.ports import Event
from ops.run import observe

_FOR_EVER_S = 10 * 365 * 86_400.0


def history(spec: HostSpec) -> list[dict[str, Any]]:
    """The whole journal of a host, oldest first."""
    with connected(spec) as host:
        events: list[dict[str, Any]] = host.call("journal.read", instance_dir=spec.instance_dir)["events"]
        return events


def releases(spec: HostSpec) -> list[dict[str, Any]]:
    """The releases on a host with the links that name them: [{id, staged_at, links: [...]}]."""
    with connected(spec) as host:
        facts = observe(host)
    by_release: dict[str, list[str]] = {}
    for link, release in facts["links"].items():
        by_release.setdefault(release, []).append(link)
    return [{**release, "links": by_release.get(release["id"], [])} for release in facts["releases"]]


def logs(spec: HostSpec, release: str | None, lines: int, follow: bool, show: Callable[[str], None]) -> None:
    """Show the log of a release (default: the current one). Raises: ConfigError when there is none."""

    def show_lines(event: Event) -> None:
        for line in event["lines"]:
            show(line)

    with connected(spec) as host:
        facts = observe(host)
        chosen = release or facts["links"]["current"]
        if chosen is None or chosen not in {r["id"] for r in facts["releases"]}:
            there = ", ".join(r["id"] for r in facts["releases"]) or "none"
            raise ConfigError(f"no release {chosen or ''} on this host; there are: {there}", host=spec.name)
        host.call(
            "watch.log",
            log=f"{spec.instance_dir}/logs/{chosen}.log",
            lines=lines,
            follow=follow,
            wait_s=_FOR_EVER_S if follow else 30.0,
            on_event=show_lines,
        )
