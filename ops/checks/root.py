"""The instance's folder must be ours to write, with room for a release and its log."""

from ops.checks import Check, Question, Verdict
from ops.model.inventory import HostSpec
from ops.model.profile import Profile
from ops.model.state import Facts

MIN_FREE_MIB = 16
"""A release is some 20 KiB; the rest is for the logs of two starts and the journal."""


def judge(ask: Question, facts: Facts, profile: Profile, spec: HostSpec) -> Verdict:
    disk = facts["disk"]
    if not disk["writable"]:
        return ask.failed(
            f"no permission: {facts['user']} cannot write {spec.instance_dir}",
            f"sudo install -d -o {facts['user']} {spec.root}, or set ansible_become: true in the inventory",
        )
    if disk["free_mib"] < MIN_FREE_MIB:
        return ask.failed(
            f"the disk is too small: {disk['free_mib']} MiB free of {disk['total_mib']} under {spec.root}, "
            f"{MIN_FREE_MIB} MiB are needed",
            "free space there, or set ops_root to another file system",
        )
    return ask.passed(f"{disk['free_mib']} MiB free", free_mib=disk["free_mib"])


CHECK = Check("root", "Can releases be written?", 20, judge)
