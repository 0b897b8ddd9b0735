"""Bad input ends in exit 2 with a sentence, and nothing is touched: else a typing mistake costs a server."""

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ops.cli.app import main
from ops.sandbox.host import Sandbox

pytestmark = pytest.mark.sandbox
Refuse = Callable[..., str]


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Iterator[Sandbox]:
    project = tmp_path_factory.mktemp("project")
    shutil.copytree(repository / "envs", project / "envs")
    made = Sandbox.up("refusing", project=project, time_scale=20, noise="off")
    yield made
    made.down()


@pytest.fixture
def project(box: Sandbox, tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of its own for each test, deploying to the shared sandbox."""
    folder = tmp_path / "project"
    shutil.copytree(repository / "envs", folder / "envs")
    shutil.copy(box.inventory, folder / "envs" / "hosts.yml")
    monkeypatch.setenv("OPS_PROJECT", str(folder))
    monkeypatch.setenv("OPS_HOST", box.name)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def refused(box: Sandbox, capsys: pytest.CaptureFixture[str]) -> Refuse:
    """Run a command line, require exit 2 and an untouched host, and return what was said."""

    def run(*words: str) -> str:
        before = sorted(str(path) for path in box.root.rglob("*"))
        code = main(list(words))
        said = capsys.readouterr()
        assert code == 2, said.out + said.err
        assert "Traceback" not in said.err
        assert sorted(str(path) for path in box.root.rglob("*")) == before
        return said.out + said.err

    return run


def deploy_with(project: Path, refused: Refuse, text: str, base: str = "eagle3-2step") -> str:
    (project / "envs" / "profiles" / "broken.yaml").write_text(f"extends: {base}\nfallback: baseline\n{text}\n")
    return refused("deploy", "--profile", "broken")


def test_an_unknown_profile_is_named_with_near_matches(project: Path, refused: Refuse) -> None:
    said = refused("deploy", "--profile", "eagle3-2steps")
    assert "eagle3-2steps" in said and "eagle3-2step" in said.replace("eagle3-2steps", "")


def test_json_carries_the_refusal_as_one_document(
    project: Path, box: Sandbox, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["deploy", "--profile", "nope", "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert (document["outcome"], document["exit_code"]) == ("refused", 2)
    assert "nope" in document["error"]["message"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("engin: {}", ("broken.yaml:3", "engin", "engine")),
        ("speculation: {draft_tokens: 7}", ("draft_tokens", "steps + 1", "broken.yaml:3")),
        ("speculation: {draft_path: null}", ("draft_path",)),
        ("speculation: {draft_tensor_parallel: 1}", ("draft", "no such", "tensor-parallel")),
        ("engine: {flags: {speculative-draft-tp-size: 1}}", ("draft", "tensor-parallel")),
        ("speculation: {steps: -1, draft_tokens: 0}", ("steps", "-1")),
        ("engine: {mem_fraction_static: 7}", ("mem_fraction_static", "7")),
        ("engine: {tensor_parallel: 100000}", ("tensor_parallel",)),
        ("engine: {flags: {no-such-flag: 1}}", ("no-such-flag", "kimi-k25-eagle3")),
        ("env: {NCCL_PROTO: NOPE}", ("NCCL_PROTO", "NOPE")),
        ("env: {NCCL_PROTOO: LL}", ("NCCL_PROTOO", "NCCL_PROTO")),
        ("env: {SGLANG_SIMULATE_ACC_LEN: '2.5'}", ("SGLANG_SIMULATE_ACC_LEN",)),
    ],
)
def test_a_profile_that_breaks_a_rule_is_refused(
    project: Path, refused: Refuse, text: str, words: tuple[str, ...]
) -> None:
    said = deploy_with(project, refused, text)
    for word in words:
        assert word in said, said


@pytest.mark.parametrize("value", ["LL,Simple", "^LL128"])
def test_nccl_lists_are_legal(project: Path, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "envs" / "profiles" / "fine.yaml").write_text(f"extends: baseline\nenv: {{NCCL_PROTO: '{value}'}}\n")
    assert main(["profile", "validate", "fine"]) == 0, capsys.readouterr().err


def test_spec_flags_without_a_draft_are_refused(project: Path, refused: Refuse) -> None:
    said = deploy_with(project, refused, "engine: {flags: {speculative-draft-window-size: 512}}", base="baseline")
    assert "draft" in said


def test_a_host_that_is_not_in_the_inventory_is_named(project: Path, refused: Refuse) -> None:
    assert "gpu-z" in refused("deploy", "--profile", "eagle3-2step", "--host", "gpu-z")


def change_inventory(project: Path, old: str, new: str) -> None:
    file = project / "envs" / "hosts.yml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_an_unreachable_host_is_said_to_be_unreachable(project: Path, refused: Refuse) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    change_inventory(project, "ansible_port: 2222", f"ansible_port: {port}")
    assert "no SSH connection" in refused("deploy", "--profile", "eagle3-2step")


def test_a_wrong_host_key_is_refused(project: Path, box: Sandbox, refused: Refuse, tmp_path: Path) -> None:
    known = box.layout.folder / "ssh" / "known_hosts"
    other = tmp_path / "known_hosts"
    name, kind, _ = known.read_text().split()[:3]
    key = "AAAAC3NzaC1lZDI1NTE5AAAAIJ0pKC0mPzJ1Yw3sZ5bTBh5cE1cM2N6ZbYJm0Zb0yq3A"
    other.write_text(f"{name} {kind} {key}\n")
    change_inventory(project, f"ops_known_hosts: {known}", f"ops_known_hosts: {other}")
    assert "host key" in refused("deploy", "--profile", "eagle3-2step")


def test_a_login_without_permission_is_refused(project: Path, box: Sandbox, refused: Refuse, tmp_path: Path) -> None:
    stranger = tmp_path / "stranger"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(stranger)], check=True)
    key = box.layout.folder / "ssh" / "client_key"
    change_inventory(project, f"ansible_ssh_private_key_file: {key}", f"ansible_ssh_private_key_file: {stranger}")
    assert "permission denied" in refused("deploy", "--profile", "eagle3-2step")


def test_a_root_that_is_not_ours_to_write_is_refused(
    project: Path, box: Sandbox, refused: Refuse, tmp_path: Path
) -> None:
    closed = tmp_path / "closed"
    if os.geteuid() == 0:  # root may write everywhere but below a file
        closed.touch()
    else:
        closed.mkdir(mode=0o555)
    change_inventory(project, f"ops_root: {box.root}", f"ops_root: {closed}/ops")
    assert f"cannot write {closed}/ops/default" in refused("deploy", "--profile", "eagle3-2step")


def test_a_taken_port_is_refused_and_its_owner_is_named(project: Path, box: Sandbox, refused: Refuse) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((box.address, 8000))
        taken.listen()
        said = refused("deploy", "--profile", "eagle3-2step")
    assert "port 8000" in said and "pytest" in said


def test_a_disk_that_is_too_small_is_refused(project: Path, repository: Path, tmp_path: Path, refused: Refuse) -> None:
    from ops.errors import Refused

    try:
        small = Sandbox.up("small", project=project, time_scale=20, root_size_mib=8)
    except Refused as reason:
        if os.geteuid() == 0:
            raise
        pytest.skip(f"mounting is not possible here: {reason.message}")
    try:
        shutil.copy(small.inventory, project / "envs" / "hosts.yml")
        assert "disk is too small" in refused("deploy", "--profile", "eagle3-2step", "--host", "small")
    finally:
        small.down()
