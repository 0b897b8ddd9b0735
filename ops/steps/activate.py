"""Make the host's files those of the release: `current`, the unit, /etc/nccl.conf. None: nothing will serve."""

from typing import Any

from ops.errors import StepFailed
from ops.run import Run, hashes


def do(run: Run, *, release: str | None) -> dict[str, Any]:
    if release is not None:
        expected = hashes(run.manifest(release))
        drifted = run.call("store.verify", release=release, hashes=expected)["drifted"]
        if drifted:
            raise StepFailed(
                f"{', '.join(drifted)} of release {release} are not what was deployed",
                hint=f"deploy the profile again: ops deploy --profile {release.rpartition('-')[0]}",
                host=run.host.name,
            )
    run.call("lifecycle.activate", release=release, supervisor=run.supervisor, wait_s=90.0)
    return {}
