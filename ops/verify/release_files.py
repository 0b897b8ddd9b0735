"""Are the release's files what was deployed: contents, modes, owners, nothing missing, nothing added?"""

from collections.abc import Mapping
from typing import Any

from ops.verify import Check, Question, Seen, Verdict

REMEDY = "deploy the profile again: it puts the files back (a changed file is what the next start would use)"


def judge(ask: Question, seen: Seen) -> Verdict:
    found = {file["name"]: file for file in seen.deployed["folder"]}
    wanted = seen.manifest["files"]
    problems = [f"{name} is missing" for name in sorted(wanted.keys() - found.keys())]
    problems += [f"{name} was added" for name in sorted(found.keys() - wanted.keys() - {"manifest.json"})]
    for name in sorted(wanted.keys() & found.keys()):
        problems += _differences(name, wanted[name], found[name], seen)
    # The manifest could have been changed with the files; the folder's name cannot.
    if not problems and seen.deployed["identity"] != seen.release:
        problems.append(
            f"files and manifest agree, but they are those of {seen.deployed['identity']}, not {seen.release}"
        )
    if problems:
        return ask.failed(f"{seen.release}: {'; '.join(problems)}", REMEDY, drift=problems)
    return ask.passed(f"{len(wanted)} files as deployed")


def _differences(name: str, wanted: Mapping[str, Any], found: Mapping[str, Any], seen: Seen) -> list[str]:
    problems = []
    if found["sha256"] is None:
        problems.append(f"{name} is no regular file")
    elif found["sha256"] != wanted["sha256"]:
        problems.append(f"{name} was changed")
    if found["mode"] != wanted["mode"]:
        open_to = " (others can read secrets)" if wanted["mode"] == "0600" and found["mode"][-2:] != "00" else ""
        problems.append(f"{name} has mode {found['mode']}, not {wanted['mode']}{open_to}")
    owner = seen.manifest["profile"]["run_as"]
    if wanted["mode"] == "0600" and owner and found["owner"] != owner:
        problems.append(f"{name} belongs to {found['owner']}, so {owner} cannot read it")
    return problems


CHECK = Check("release-files", "Are the release's files what was deployed?", 30, judge)
