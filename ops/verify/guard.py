"""Is the host's own dead-man whole? Nobody notices a broken guard until it is needed."""

from ops.verify import Check, Question, Seen, Verdict


def judge(ask: Question, seen: Seen) -> Verdict:
    files = seen.deployed["guard"]
    if files is None:
        return ask.inconclusive(
            "its files were installed by an ops that did not write down what they were",
            "deploy the profile again, then ops verify",
        )
    problems = []
    for file in files:
        if file["sha256"] is None:
            problems.append(f"{file['name']} is missing")
        elif file["sha256"] != file["wanted"]["sha256"]:
            problems.append(f"{file['name']} was changed")
        elif file["mode"] != file["wanted"]["mode"]:
            problems.append(f"{file['name']} has mode {file['mode']}, not {file['wanted']['mode']}")
    if problems:
        return ask.failed(
            "; ".join(problems), "deploy the profile again: it installs the guard anew", problems=problems
        )
    return ask.passed(f"{len(files)} files as installed")


CHECK = Check("guard", "Is the guard as it was installed?", 38, judge)
