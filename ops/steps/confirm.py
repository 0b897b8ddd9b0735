"""The commit point, over a fresh connection: whoever comes next can reach the host too.

A release without speculation becomes the baseline here and not earlier: one that fails must not be a way back.
"""

from typing import Any

from ops.errors import GuardActed, RemoteFailed
from ops.run import Run


def do(run: Run, *, release: str) -> dict[str, Any]:
    with run.host.fresh() as fresh:
        try:
            found: dict[str, Any] = fresh.call(
                "guard.confirm", instance_dir=run.instance_dir, run=run.identity.run, supervisor=run.supervisor
            )
        except RemoteFailed as error:
            raise GuardActed(error.message, hint=f"ops status --host {run.host.name}", host=run.host.name) from error
    run.armed = False
    if not run.profile(release).speculative:
        run.call("store.set_link", link="baseline", release=release)
    for report in run.reports[-1:]:
        run.remember(run, report)
    return found
