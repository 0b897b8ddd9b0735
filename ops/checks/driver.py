"""A driver that does not fit its library, or is too old for the stack's CUDA, shows after minutes of loading."""

import re

from ops.checks import Check, Question, Verdict
from ops.model.inventory import HostSpec
from ops.model.profile import Profile
from ops.model.state import Facts

MISMATCH = re.compile(r"driver/library version mismatch", re.IGNORECASE)
OLDEST_DRIVER = {11: (450, 80), 12: (525, 60), 13: (580, 65)}
"""CUDA's major version: the oldest driver that runs it, with minor version compatibility.

Source: NVIDIA CUDA 13 release notes, table "CUDA Toolkit and Minimum Required Driver Version for CUDA Minor Version
Compatibility" (11.x >= 450.80.02, 12.x >= 525.60.13, 13.x >= 580.65.06).
"""


def judge(ask: Question, facts: Facts, profile: Profile, spec: HostSpec) -> Verdict:
    if profile.engine.flags.get("device") == "cpu":
        return ask.skipped("the profile runs on the CPU")
    problem = facts["gpu_problem"]
    if MISMATCH.search(problem):
        return ask.failed(
            f"nvidia-smi: {problem}",
            "the driver was updated under a running kernel module: reboot (ops host reboot --verify), or unload and "
            "load the nvidia modules while nothing uses the GPUs",
        )
    if facts["gpus"] is None or not facts["gpus"]["devices"]:
        return ask.inconclusive(f"no driver answers: {problem or 'no GPU'}", "install or repair the driver")
    driver = facts["gpus"]["devices"][0]["driver"]
    cuda = ((facts.get("candidate") or {}).get("stack") or {}).get("cuda")
    if cuda is None:
        return ask.passed(f"driver {driver}; the stack names no CUDA version to compare with", driver=driver)
    oldest = OLDEST_DRIVER.get(int(str(cuda).split(".")[0]))
    if oldest is not None and _version(driver) < oldest:
        return ask.failed(
            f"driver {driver} is too old for CUDA {cuda}: it needs {oldest[0]}.{oldest[1]} or newer",
            "update the driver on the host, or deploy a stack that was built for an older CUDA",
            driver=driver,
            cuda=cuda,
        )
    return ask.passed(f"driver {driver} runs CUDA {cuda}", driver=driver, cuda=cuda)


def _version(text: str) -> tuple[int, int]:
    """Return major and minor; every number a driver's name lacks counts as 0."""
    numbers = [int(n) for n in re.findall(r"\d+", text)[:2]]
    return (*numbers, 0, 0)[0], (*numbers, 0, 0)[1]


CHECK = Check("driver", "Does the driver work, and is it new enough for the stack's CUDA?", 45, judge)
