"""`ops verify`'s judgements, on what was seen. A judgement that cannot fail tells an operator that all is well."""

from pathlib import Path
from typing import Any

import pytest

from ops.model.verdict import Outcome, Verdict
from ops.remote import deployed as on_host
from ops.verify import Question, Seen, all_checks
from ops.verify.topology import kinds

PCIE = """\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tSYS\tPHB\t0-31\t0
GPU1\tSYS\t X \tSYS\t32-63\t1
NIC0\tPHB\tSYS\t X
"""
NVLINK = "\t\x1b[4mGPU0\tGPU1\x1b[0m\nGPU0\t X \tNV18\nGPU1\tNV18\t X \n"
ONE = "\t\x1b[4mGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\nGPU0\t X \t0-15\t0\t\tN/A\n"
SET = {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring", "SPT_NOENV": "1"}


def rank(pid: int, environ: dict[str, str] | None) -> dict[str, Any]:
    return {"pid": pid, "ppid": 10, "title": f"sglang::scheduler_TP{pid - 11}", "release": "p-1", "environ": environ}


def seen(**changes: Any) -> Seen:
    launcher = {"pid": 10, "ppid": 1, "title": "python", "release": "p-1", "environ": SET}
    facts = {
        "engine": {"pid": 10, "state": "running", "detail": ""},
        "processes": [launcher, rank(11, SET), rank(12, SET)],
        "guard": {"wanted": "running"},
        "links": {"current": "p-1", "last-good": "p-1", "baseline": "b-1", "pending": None},
        "supervisor": "systemd",
        "gpus": {"topology": PCIE},
    }
    unit = {"unit": "sglang-default.service", "installed": "/i", "wanted": "/w", "same": True, "enabled": True}
    file = {"name": "engine.env", "sha256": "aa", "mode": "0600", "owner": "root"}
    deployed = {
        "release": "p-1",
        "folder": [file, {"name": "manifest.json", "sha256": "zz", "mode": "0644", "owner": "root"}],
        "identity": "p-1",
        "nccl_log": [],
        "nccl_files": [],
        "units": [{**unit, "overrides": [], "stale": False, "problem": ""}],
        "guard": [{"name": "guard.sh", "sha256": "g", "mode": "0755", "wanted": {"sha256": "g", "mode": "0755"}}],
        "limits": {"11": {"memlock": [-1, -1], "nofile": [1_048_576, 1_048_576]}},
        "container": None,
    }
    manifest = {
        "environment": {**SET, "PATH": "/usr/bin"},
        "expect": {"ranks": 2},
        "files": {"engine.env": {"sha256": "aa", "mode": "0600"}},
        "profile": {"run_as": None},
        "nccl": {"name": "set", "topology": "pcie"},
        "runtime": "native",
    }
    parts: dict[str, dict[str, Any]] = {"facts": facts, "deployed": deployed, "manifest": manifest}
    for part, values in changes.items():
        parts[part] = {**parts[part], **values}
    return Seen(parts["facts"], parts["deployed"], parts["manifest"])


def answer(name: str, what: Seen) -> Verdict:
    check = next(check for check in all_checks() if check.name == name)
    return check.judge(Question(check.name, check.question), what)


CASES: dict[str, tuple[str, Seen, Outcome, str]] = {
    "a variable missing in one rank": (
        "environment",
        seen(facts={"processes": [rank(11, SET), rank(12, {"NCCL_ALGO": "Ring", "SPT_NOENV": "1"})]}),
        Outcome.FAIL,
        "NCCL_PROTO is missing in 1 ranks",
    ),
    "a blank environment": (
        "environment",
        seen(facts={"processes": [rank(11, SET), rank(12, None)]}),
        Outcome.INCONCLUSIVE,
        "SPT_NOENV=1",
    ),
    "wrong in one rank and blank in another": (
        "environment",
        seen(facts={"processes": [rank(11, {}), rank(12, None)]}),
        Outcome.FAIL,
        "NCCL_PROTO is missing",
    ),
    "no rank": ("environment", seen(facts={"processes": []}), Outcome.INCONCLUSIVE, "no rank"),
    "somebody's variable": (
        "engine-variables",
        seen(facts={"processes": [rank(11, {**SET, "NCCL_IB_DISABLE": "1"})]}),
        Outcome.FAIL,
        "NCCL_IB_DISABLE=1",
    ),
    "the engine's own": (
        "engine-variables",
        seen(facts={"processes": [rank(11, {**SET, "NCCL_NVLS_ENABLE": "0"})]}),
        Outcome.PASS,
        "the engine added NCCL_NVLS_ENABLE=0",
    ),
    "a file that adds": (
        "nccl-files",
        seen(deployed={"nccl_files": [{"path": "/etc/nccl.conf", "content": "# x\nNCCL_P2P_DISABLE=1\n"}]}),
        Outcome.FAIL,
        "/etc/nccl.conf sets NCCL_P2P_DISABLE=1",
    ),
    "a file that the environment overrules": (
        "nccl-files",
        seen(deployed={"nccl_files": [{"path": "/etc/nccl.conf", "content": "NCCL_PROTO=Simple\n"}]}),
        Outcome.PASS,
        "the environment wins",
    ),
    "processes of another release": (
        "running",
        seen(facts={"processes": [rank(11, SET), {**rank(12, SET), "release": "q-2"}]}),
        Outcome.FAIL,
        "q-2",
    ),
    "a rank that hangs on process 1": (
        "running",
        seen(facts={"processes": [{**rank(11, SET), "ppid": 1}]}),
        Outcome.FAIL,
        "not started by its supervisor",
    ),
    "a secret open to others": (
        "release-files",
        seen(deployed={"folder": [{"name": "engine.env", "sha256": "aa", "mode": "0644", "owner": "root"}]}),
        Outcome.FAIL,
        "others can read secrets",
    ),
    "a file added": (
        "release-files",
        seen(
            deployed={
                "folder": [
                    {"name": "engine.env", "sha256": "aa", "mode": "0600", "owner": "root"},
                    {"name": "sitecustomize.py", "sha256": "bb", "mode": "0644", "owner": "root"},
                ]
            }
        ),
        Outcome.FAIL,
        "sitecustomize.py was added",
    ),
    "files and manifest changed alike": (
        "release-files",
        seen(deployed={"identity": "p-2"}),
        Outcome.FAIL,
        "they are those of p-2, not p-1",
    ),
    "pending": (
        "boot",
        seen(facts={"links": {"current": "q-2", "last-good": "p-1", "baseline": None, "pending": "q-2"}}),
        Outcome.FAIL,
        "a boot goes back to p-1",
    ),
    "processes that cannot be read": (
        "running",
        seen(facts={"processes": [], "unseen": True}),
        Outcome.INCONCLUSIVE,
        "closed to the agent",
    ),
    "a guard nobody wrote down": ("guard", seen(deployed={"guard": None}), Outcome.INCONCLUSIVE, "write down"),
    "limits that a container did not give": (
        "limits",
        seen(deployed={"limits": {"11": {"memlock": [65_536, 65_536], "nofile": [1_048_576, 1_048_576]}}}),
        Outcome.PASS,
        "less than the unit asks for",
    ),
    "a PCIe set on NVLink": (
        "topology",
        seen(facts={"gpus": {"topology": NVLINK}}),
        Outcome.PASS,
        "846 -> 745 tok/s",
    ),
    "one GPU": ("topology", seen(facts={"gpus": {"topology": ONE}}), Outcome.SKIPPED, "no links"),
    "no topology": ("topology", seen(facts={"gpus": None}), Outcome.INCONCLUSIVE, "topo -m"),
    "a container with its old environment": (
        "container",
        seen(
            manifest={"runtime": "docker"},
            deployed={"container": {"environ": {**SET, "NCCL_PROTO": "Simple"}, "running": True, "image": "i"}},
        ),
        Outcome.FAIL,
        "NCCL_PROTO is 'Simple', wanted 'LL'",
    ),
    "NCCL says something else": (
        "nccl-log",
        seen(deployed={"nccl_log": [{"pid": 11, "name": "NCCL_ALGO", "value": "Tree"}]}),
        Outcome.FAIL,
        "NCCL_ALGO is 'Tree' in pid 11",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_judgement(case: str) -> None:
    name, what, outcome, words = CASES[case]
    found = answer(name, what)
    assert (found.outcome, words in found.message) == (outcome, True), found.line()


def test_as_deployed_every_question_but_those_that_do_not_apply_passes() -> None:
    found = {check.name: answer(check.name, seen()).outcome for check in all_checks() if check.name != "software"}
    assert {name for name, outcome in found.items() if outcome is Outcome.SKIPPED} == {"nccl-log", "container"}
    assert set(found.values()) == {Outcome.PASS, Outcome.SKIPPED}


def test_links_are_read_whatever_else_the_matrix_holds() -> None:
    assert kinds(PCIE) == {"SYS"}
    assert kinds(NVLINK) == {"NV18"}
    assert kinds(ONE) == set(), "the header begins with GPU0 as well"


def test_settings_are_read_from_what_nccl_really_logged(repository: Path) -> None:
    found = on_host.nccl_settings(str(repository / "tests/recordings/sglang-0.5.17-h200/nccl_info_ll.log"))

    by_rank = {gpu: {e["name"]: e["value"] for e in found if e["gpu"] == gpu} for gpu in (0, 1)}
    for settings in by_rank.values():
        assert settings["NCCL_P2P_LEVEL"] == "SYS"
        assert settings["NCCL_MAX_NCHANNELS"] == "16"
        assert settings["NCCL_BUFFSIZE"] == "16777216"
        assert settings["NCCL_CUMEM_ENABLE"] == "0"
