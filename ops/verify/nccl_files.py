"""Does a file change NCCL behind a clean environment? NCCL reads /etc/nccl.conf and ~/.nccl.conf by itself."""

import re
from collections.abc import Mapping, Sequence

from ops.verify import Check, Question, Seen, Verdict

SETTING = re.compile(r"^\s*([A-Z][A-Z0-9_]*)\s*=\s*(.*?)\s*$")


def judge(ask: Question, seen: Seen) -> Verdict:
    ours = "nccl.conf" in seen.manifest["files"]
    files = seen.deployed["nccl_files"]
    changes = settings(files, seen.environment)
    missing = ours and not any(file["path"] == "/etc/nccl.conf" for file in files)
    if missing:
        return ask.failed("/etc/nccl.conf is gone, and the profile asks for it", "deploy the profile again")
    if changes:
        named = ", ".join(f"{path} sets {name}={value}" for path, name, value in changes)
        return ask.failed(
            f"{named}: NCCL reads that at the next start, whatever the environment says",
            "remove the lines, or put the variables into the profile's NCCL set; then ops restart",
            settings=[list(change) for change in changes],
        )
    read = ", ".join(file["path"] for file in files)
    return ask.passed(f"{read} changes nothing: the environment wins" if read else "there are no such files")


def settings(files: Sequence[Mapping[str, str]], environment: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Return (path, name, value) of what the files add: NCCL lets the environment win where both have one.

    Source: NCCL src/misc/param.cc, setEnvFile: setenv(name, value, 0) for each line that is no comment.
    """
    found = []
    for file in files:
        for line in file["content"].splitlines():
            setting = SETTING.match(line)
            if setting and setting[1] not in environment:
                found.append((file["path"], setting[1], setting[2]))
    return found


CHECK = Check("nccl-files", "Does no nccl.conf change NCCL behind the environment?", 24, judge)
