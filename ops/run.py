"""A run: one command's work on one host, with its identity, its releases and its line to the journal."""

import getpass
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ops.errors import ConfigError, GuardActed, RemoteFailed
from ops.model.gate import BaselineRecord, GateReport, Subset
from ops.model.ports import Host, Peers, Reporter, Router
from ops.model.profile import Profile
from ops.model.release import Release
from ops.model.state import Facts
from ops.remote import keys
from ops.remote.refusal import HOST_TAKEN

ANSWER_S = 120.0
"""Lists of files of 200 packages are compared in 1 s from a warm disk; a loaded host takes longer."""
LOOK_S = 60.0
WEIGHTS_S = 3600.0
"""The first digest of weights reads them all: 360 GB at the 100 MB/s of a network disk. Later looks know it."""
GateRunner = Callable[["Run", str, Subset], GateReport]
Remember = Callable[["Run", GateReport], None]

FENCED = frozenset(
    {
        *("guard.arm", "guard.disarm", "guard.finish", "guard.install", "guard.rearm"),
        *("lifecycle.activate", "lifecycle.drain", "lifecycle.start", "lifecycle.stop"),
        *("stack.prune", "store.prune", "store.set_link", "store.stage"),
    }
)
"""Verbs that change what the host runs. A client that was away (frozen, cut off) repeats its last call when it is back;
by then the guard may have gone back, and the call must not undo that."""


def place() -> str:
    """Where a pid of this process means what it says: this machine, since its boot, in this pid namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


@dataclass(frozen=True)
class Identity:
    """Who does this run, and from where."""

    run: str
    user: str
    host: str
    place: str
    pid: int
    pid_start: int | None

    @classmethod
    def new(cls) -> "Identity":
        from ops.remote import processes

        facts: dict[str, Any] | None = processes.stat(os.getpid())
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        return cls(
            run=f"{stamp}-{secrets.token_hex(3)}",
            user=getpass.getuser(),
            host=socket.gethostname(),
            place=place(),
            pid=os.getpid(),
            pid_start=facts["starttime"] if facts else None,
        )

    def lock_document(self, message: str) -> dict[str, Any]:
        return {
            "owner": self.user,
            "host": self.host,
            "place": self.place,
            "pid": self.pid,
            "pid_start": self.pid_start,
            "run": self.run,
            "since": round(time.time(), 3),
            "message": message,
        }


@dataclass
class Run:
    """What the steps of one run share.

    Attributes:
        releases: what this run rendered, by release id; other releases are known by their manifest on the host.
        secrets: values of the profile's secret variables, read where `ops` runs.
        seconds: engine seconds each step took.
        armed: the guard watches this run. left_to_guard: and it will have to act, so the lock stays.
        deadline: when the guard acts (this machine's monotonic clock); until then a broken connection is worth
            waiting for.
        peers: the other hosts that serve the same model; None: this host serves alone.
    """

    host: Host
    router: Router
    identity: Identity
    reporter: Reporter
    gate: GateRunner
    remember: Remember
    facts: Facts
    releases: dict[str, Release] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    reports: list[GateReport] = field(default_factory=list)
    assumed_baseline: BaselineRecord | None = None
    started: dict[str, Any] = field(default_factory=dict)
    armed: bool = False
    deadline: float = 0.0
    left_to_guard: bool = False
    sequence: int = 0
    peers: Peers | None = None

    @property
    def instance_dir(self) -> str:
        return self.host.spec.instance_dir

    def key(self, *flags: str) -> dict[str, Any]:
        """Where the host finds the engine's key for itself (the first of `flags` it has); it never leaves the host."""
        reference: dict[str, Any] = keys.reference(self.instance_dir, *flags)
        return reference

    @property
    def supervisor(self) -> dict[str, Any]:
        return supervisor_of(self.host)

    def say(self, text: str) -> None:
        self.reporter.say(self.host.name, text)

    def call(self, verb: str, **kwargs: Any) -> Any:
        """Run a verb on this instance; a verb that finds this run undone raises GuardActed."""
        if verb in FENCED:
            kwargs["fence"] = self.identity.run
        patience_s = max(0.0, self.deadline - time.monotonic()) if self.armed else 0.0
        try:
            return self.host.call(
                verb, instance_dir=self.instance_dir, on_reconnect=self.say, patience_s=patience_s, **kwargs
            )
        except RemoteFailed as error:
            if error.code in HOST_TAKEN:
                raise GuardActed(
                    f"{error.message}: its deadline passed, the host rebooted, or another client took over",
                    hint=f"ops status --host {self.host.name}",
                    host=self.host.name,
                ) from error
            raise

    def now_armed(self, wall_s: float) -> None:
        """The guard acts in `wall_s` unless somebody confirms."""
        self.armed = True
        self.deadline = time.monotonic() + wall_s

    def journal(
        self, event: str, *, fenced: bool = True, also: Sequence[Mapping[str, Any]] = (), **fields: Any
    ) -> None:
        """Append a line of this run. also: lines of other runs, written with it or not at all."""
        own = {"run": self.identity.run, "event": event, **fields}
        self.call("journal.append", event=own, also=list(also), fenced=fenced)

    def meet(self, point: str, word: str = "") -> Mapping[str, str]:
        """What every host that serves this model says at `point`, by host; alone: what this one says."""
        return self.peers.meet(point, word) if self.peers is not None else {self.host.name: word}

    def everywhere(self, point: str, here: bool) -> bool:
        """Whether something is so on every host that serves this model."""
        return all(word == "yes" for word in self.meet(point, "yes" if here else "no").values())

    @property
    def leader(self) -> str:
        """The host that decides for all: rank 0, or this one where it serves alone."""
        node = self.host.spec.node
        return node.members[0] if node is not None and self.peers is not None else self.host.name

    def observe(self, **kwargs: Any) -> Facts:
        """Look at the host again and keep what was seen."""
        self.facts = observe(self.host, self.say, **kwargs)
        return self.facts

    def manifest(self, release: str) -> Mapping[str, Any]:
        """The manifest of a release: rendered by this run, or as it lies on the host."""
        if release in self.releases:
            return self.releases[release].manifest
        manifest = self.facts["manifests"].get(release)
        if manifest is None:
            raise ConfigError(f"release {release} has no manifest on the host", host=self.host.name)
        return dict(manifest)

    def profile(self, release: str) -> Profile:
        """The profile that `release` was rendered from."""
        return Profile.model_validate(self.manifest(release)["profile"])

    def address(self, release: str) -> str:
        """The address the engine of `release` binds on this host."""
        return self.host.spec.bind or self.profile(release).engine.host


def alive_here(pid: int, starttime: int | None) -> bool:
    """Whether (pid, start time) lives on this machine: how a lock taken from here is judged."""
    from ops.remote import processes

    return bool(processes.alive(pid, starttime))


def supervisor_of(host: Host) -> dict[str, Any]:
    """How the agent finds the host's supervisor."""
    spec = host.spec
    return {
        "kind": spec.supervisor,
        "instance": spec.instance,
        "instance_dir": spec.instance_dir,
        "conf": spec.supervisor_conf or "/etc/supervisor/supervisord.conf",
    }


def observe(host: Host, say: Callable[[str], None] | None = None, **kwargs: Any) -> Facts:
    """One read-only pass over the host (see `ops.remote.facts`). say: is told of weights while they are read."""
    weights = any(model["weights"] for model in (kwargs.get("models") or {}).values())
    found: Facts = host.call(
        "facts.observe",
        instance_dir=host.spec.instance_dir,
        supervisor=supervisor_of(host),
        wait_s=WEIGHTS_S if weights else LOOK_S,
        on_event=(lambda event: say(event["say"])) if say is not None else None,
        **kwargs,
    )
    return {**found, "observed_at": time.time()}


def hashes(manifest: Mapping[str, Any]) -> dict[str, str]:
    """{file: sha256} of a release's files, without those that hold secrets (their digest leaves the secrets out)."""
    return {name: file["sha256"] for name, file in manifest["files"].items() if not file["secrets_left_out"]}


def software_answer(host: Host, manifest: Mapping[str, Any]) -> Any:
    """What the running environment says of its own packages; None where the release does not name its software."""
    software = manifest.get("software")
    if software is None:
        return None
    return host.call(
        "stack.prove_current",
        instance_dir=host.spec.instance_dir,
        instance=host.spec.instance,
        software=software,
        timeout_s=ANSWER_S,
        wait_s=ANSWER_S + 60.0,
    )
