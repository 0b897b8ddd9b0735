"""NCCL needs shared memory; a container's default of 64 MiB ends in a crash at start with 8 GPUs."""

from ops.checks import Check, Question, Verdict
from ops.model.inventory import HostSpec
from ops.model.profile import Profile
from ops.model.state import Facts

MIB_PER_RANK = 16
"""A segment takes up to 9.6 MB (https://github.com/sgl-project/sglang/issues/4259); the rest is margin."""


def judge(ask: Question, facts: Facts, profile: Profile, spec: HostSpec) -> Verdict:
    ranks = spec.ranks(profile.engine.ranks)
    needed = MIB_PER_RANK * ranks if ranks > 1 else 0
    total = facts["shm"]["total_mib"]
    if total < needed:
        return ask.failed(
            f"/dev/shm has {total} MiB, {ranks} ranks need {needed} MiB and more",
            "mount -o remount,size=32G /dev/shm, or start the container with --ipc=host or --shm-size",
        )
    return ask.passed(f"/dev/shm has {total} MiB")


CHECK = Check("shared-memory", "Is /dev/shm large enough for NCCL?", 60, judge)
