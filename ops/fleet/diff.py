"""What a deploy would change on a host, as text: rendered files against the host's, and the links. Secrets masked."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence

from ops.model.profile import SECRET_FLAGS, Profile
from ops.model.release import Release
from ops.model.state import Facts
from ops.render import without_secrets

HostFiles = Mapping[str, Mapping[str, str]]
"""As `ops.remote.files.read` returns them."""
Diff = dict[str, str]
"""As Ansible prints one: before, after, before_header, after_header."""

SECRET_FILES = ("engine.env", "secrets.yaml")
LINKS = ("current", "last-good")


def secret_names(profile: Profile, facts: Facts) -> list[str]:
    """Names whose values are left out of everything that is shown: the profile's and those of what is current."""
    manifest = facts["manifests"].get(facts["links"]["current"]) or {}
    return sorted({*profile.secrets, *manifest.get("secrets", ()), *SECRET_FLAGS})


def differences(
    release: Release, secrets: Sequence[str], files: HostFiles, facts: Facts, instance_dir: str
) -> list[Diff]:
    """Compare the release with what is current on the host.

    Args: secrets: names whose values are masked. files: those of the host's current release, read with the same names.
    """
    current = facts["links"]["current"]
    found = [
        _diff(f"{instance_dir}/current/{name}", before, after)
        for name, before, after in _texts(release, secrets, files)
        if before != after
    ]
    before = "".join(f"{link} -> {facts['links'][link] or '(none)'}\n" for link in LINKS)
    after = "".join(f"{link} -> {release.id}\n" for link in LINKS)
    if before != after:
        found.append(_diff(f"{instance_dir} (links)", before, after))
    serving = facts["engine"]["state"] == "running"
    if not serving or current != release.id:
        state = f"{current or 'nothing'} {facts['engine']['state']}\n"
        found.append(_diff(f"{instance_dir} (engine)", state, f"{release.id} running\n"))
    return found


def _diff(what: str, before: str, after: str) -> Diff:
    return {"before_header": what, "after_header": what, "before": before, "after": after}


def _texts(release: Release, secrets: Sequence[str], files: HostFiles) -> Iterator[tuple[str, str, str]]:
    wanted = {file.name: file for file in release.files}
    for name in sorted({*wanted, *files}):
        before = str(files[name]["text"]) if name in files else ""
        content = wanted[name].content if name in wanted else b""
        if name in SECRET_FILES:
            before = _masked(before, secrets)
            after = _masked(without_secrets(content, secrets).decode(), secrets)
            if name in files and before == after and hashlib.sha256(content).hexdigest() != files[name]["sha256"]:
                before += "# values of secrets differ (not shown)\n"
        else:
            after = content.decode()
        yield name, before, after


def _masked(text: str, secrets: Sequence[str]) -> str:
    """Put a sign where a value was left out, so that it is not taken for an empty one."""
    emptied = {f"{name}{mark}" for name in secrets for mark in ("=", ": ")}
    return "".join(f"{line}{'(secret)' if line in emptied else ''}\n" for line in text.splitlines())
