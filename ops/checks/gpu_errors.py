"""A GPU that fell off the bus needs a reboot; trying again, or rolling back, only fails again."""

from ops.checks import Check, Question, Verdict
from ops.model.inventory import HostSpec
from ops.model.profile import Profile
from ops.model.state import Facts

NEEDS_RESET = {
    48: "double bit ECC error",
    62: "internal micro-controller halt",
    64: "failed to record a page retirement or row remap",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    95: "uncontained ECC error",
    119: "GSP does not answer",
    120: "GSP error",
    140: "unrecovered ECC error",
}
"""Errors after which NVIDIA asks for a reset of the GPU or a reboot. Source: NVIDIA, "XID Errors" (catalog)."""


def judge(ask: Question, facts: Facts, profile: Profile, spec: HostSpec) -> Verdict:
    seen = facts["xids"]
    if seen is None:
        return ask.skipped("the kernel's log cannot be read here, so nothing is known of GPU errors")
    bad = [entry for entry in seen if entry["code"] in NEEDS_RESET]
    if bad:
        last = bad[-1]
        return ask.failed(
            f"the kernel logged Xid {last['code']} ({NEEDS_RESET[last['code']]}) on {last['device']} since boot: "
            "hardware, not the release",
            "reboot the host (ops host reboot --verify); when it comes back, look at power, heat and risers",
            xids=bad,
        )
    return ask.passed(f"{len(seen)} harmless entries since boot" if seen else "none since boot")


CHECK = Check("gpu-errors", "Has no GPU failed since boot?", 48, judge)
