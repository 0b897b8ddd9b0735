"""One model over several hosts: what a member's part of a command does beyond what a host does that serves alone."""

from ops.errors import ConfigError, Interrupted, OpsError, RolledBack, Unsafe
from ops.execute import transaction
from ops.flows.ownership import renew
from ops.model.inventory import HostSpec
from ops.model.plan import Plan, Purpose
from ops.model.ports import Peers
from ops.model.state import Links
from ops.planner import rollback_plan
from ops.run import Run


def refuse_alone(spec: HostSpec, peers: Peers | None) -> None:
    """Raises: ConfigError when a host that serves a model together with others is about to be changed alone."""
    if spec.node is not None and peers is None:
        raise ConfigError(
            f"rank {spec.node.rank} of {spec.node.nodes}: it serves one model together with the other hosts of group "
            f"{spec.node.ensemble}, and what is done to one of them breaks all; nothing was touched",
            hint=f"the same command with --group {spec.node.ensemble}",
            host=spec.name,
        )


def transact(run: Run, plan: Plan, *, command: str, purpose: Purpose, release: str) -> None:
    """`transaction`, for a host that serves alone or with others.

    Confirming is a moment on each host, and one may fail in it after others have passed theirs. Then the release is
    confirmed here but serves nowhere: this host goes back to what was good before, together with the others.

    Raises: what `transaction` raises.
    """
    before = Links.of(run.facts).last_good
    interrupted: Interrupted | None = None
    try:
        transaction(run, plan, command=command, purpose=purpose, release=release)
    except Interrupted as error:
        if run.peers is None or not run.peers.broken or not _committed(run, release):
            raise
        interrupted = error
    if run.peers is None or not run.peers.broken:
        return
    _back_with_the_others(run, release, before, run.peers.broken)
    host, words = run.host.name, f"after {release} was confirmed here, but not on every host: {before} serves again"
    if interrupted is not None:
        raise Interrupted(f"interrupted {words}", host=host) from interrupted
    raise RolledBack(f"{run.peers.broken}, {words}", hint=f"ops history --host {host}", host=host)


def _committed(run: Run, release: str) -> bool:
    """Whether the run that just ended passed its commit point."""
    try:
        journal = run.observe()["journal"]
    except OpsError:
        return False
    mine = [event for event in journal if event.get("run") == run.identity.run]
    return any(event["event"] == "committed" and event["release"] == release for event in mine)


def _back_with_the_others(run: Run, release: str, before: str | None, why: str) -> None:
    host = run.host.name
    if before is None:
        raise Unsafe(
            f"{why}. {release} is confirmed here but not on every host, and nothing else was good here before; it "
            "takes no traffic",
            hint=f"ops status --group {_group(run)}; then `ops deploy --group {_group(run)}` again",
            host=host,
        )
    run.say(f"{release} is confirmed here, but {why}: going back to {before} together")
    renew(run, f"back to {before}, because the others are")
    run.facts["manifests"].update({before: run.call("store.manifest", release=before)["manifest"]})
    plan = rollback_plan(before, run.profile(before))
    transaction(run, plan, command="rollback", purpose=Purpose.ROLLBACK, release=before)


def _group(run: Run) -> str:
    return run.host.spec.node.ensemble if run.host.spec.node else run.host.name


def same_release_here(run: Run, leaders: str) -> str:
    """This member's release of what the leader chose. leaders: what the leader's and ours have in common.

    Raises: ConfigError when it is not on this host.
    """
    for entry in reversed(run.facts["releases"]):
        manifest = run.call("store.manifest", release=entry["id"])["manifest"]
        if together(manifest) == leaders:
            return str(entry["id"])
    raise ConfigError(
        f"the release that belongs to {leaders} is not on this host; nothing was touched",
        hint=f"ops releases --host {run.host.name}; or deploy: ops deploy --group {_group(run)} --profile "
        f"{leaders.rpartition('-')[0]}",
        host=run.host.name,
    )


def require_together(run: Run, release: str) -> None:
    """Raises: ConfigError when the members hold releases that do not belong together: they would never meet."""
    if run.peers is None:
        return
    said = run.meet("release", together(run.manifest(release)) or release)
    if len(set(said.values())) > 1:
        raise ConfigError(
            "the hosts hold releases that do not belong together: "
            + ", ".join(f"{host} {word}" for host, word in said.items()),
            hint=f"ops rollback --group {_group(run)}, or ops deploy --group {_group(run)} --profile <profile>",
            host=run.host.name,
        )


def together(manifest: object) -> str:
    """What the releases of all members have in common; empty for a release that serves alone."""
    node = manifest.get("node") if isinstance(manifest, dict) else None
    return str(node["together"]) if node else ""
