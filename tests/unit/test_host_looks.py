"""What the agent tells of a host. If this breaks, a token leaves it, unknown becomes no, weights are read again,
or somebody's container loses its GPUs."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ops.model.inventory import HostSpec
from ops.remote import containers, machine, models, peek, systemd
from ops.remote.refusal import VerbError
from ops.run import LOOK_S, WEIGHTS_S, observe


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("export HF_TOKEN=hf_SECRET", "export HF_TOKEN=…"),
        ("  setenv HF_TOKEN hf_SECRET", "setenv HF_TOKEN …"),
        ("set -gx SGLANG_API_KEY hf_SECRET", "set -gx SGLANG_API_KEY …"),
        ('HF_TOKEN="hf_SECRET"', "HF_TOKEN=…"),
        ("export NCCL_DEBUG=INFO HF_TOKEN=hf_SECRET", "export NCCL_DEBUG=INFO"),
        ("export NCCL_DEBUG=INFO; export HF_TOKEN=hf_SECRET", "export NCCL_DEBUG=INFO"),
        ("export NCCL_IB_HCA==mlx5_0:1,mlx5_1:1", "export NCCL_IB_HCA==mlx5_0:1,mlx5_1:1"),
        ("setenv NCCL_PROTO Simple", "setenv NCCL_PROTO Simple"),
        ("export CUDA_VISIBLE_DEVICES=0,1", "export CUDA_VISIBLE_DEVICES=0,1"),
    ],
)
def test_a_login_files_line_is_told_without_what_may_be_a_secret(tmp_path: Path, line: str, text: str) -> None:
    (tmp_path / ".bashrc").write_text(f"# mine\n{line}\n")

    found = [entry for entry in machine.login_files(str(tmp_path)) if entry["path"].startswith(str(tmp_path))]

    assert found == [{"path": str(tmp_path / ".bashrc"), "line": 2, "text": text}]


@pytest.mark.parametrize(
    "error",
    [PermissionError("not yours"), FileNotFoundError("no such program"), subprocess.TimeoutExpired("python", 20)],
    ids=lambda error: type(error).__name__,
)
def test_a_user_whose_processes_cannot_be_read_is_unknown_and_no_error(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def run(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(subprocess, "run", run)

    assert peek._read(65534, [1]) == {}


def test_an_interpreter_in_a_closed_folder_is_replaced_by_the_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def run(argv: list[str], **_: Any) -> "subprocess.CompletedProcess[str]":
        tried.append(argv[0])
        if argv[0] == "/root/closed/python":
            raise PermissionError(13, "Permission denied")
        return subprocess.CompletedProcess(argv, 0, '{"7": {"environ": "A=1", "sockets": []}}', "")

    monkeypatch.setattr(sys, "executable", "/root/closed/python")
    monkeypatch.setattr(subprocess, "run", run)

    assert peek._read(65534, [7])["7"]["environ"] == "A=1"
    assert tried == ["/root/closed/python", "/usr/bin/python3"]


class Folder:
    """A model of three files, and how often each was read."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.read: list[str] = []
        self.said: list[str] = []
        self.breaks_at = ""
        path.mkdir()
        (path / "config.json").write_text("{}")
        for name in "abc":
            (path / f"{name}.safetensors").write_text(name)
        digest = models.durable.sha256

        def sha256(file: str) -> str:
            name = Path(file).stem
            if name == self.breaks_at:
                raise TimeoutError("the client did not wait")
            if file.endswith(".safetensors"):
                self.read.append(name)
            return str(digest(file))

        monkeypatch.setattr(models.durable, "sha256", sha256)
        monkeypatch.setattr(models, "_read_here", {})

    def look(self, instance: Path) -> Any:
        return models.describe(str(instance), str(self.path), True, say=self.said.append)


def test_a_look_that_was_broken_off_does_not_read_the_same_weights_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Folder(tmp_path / "model", monkeypatch)
    folder.breaks_at = "c"
    with pytest.raises(TimeoutError):
        folder.look(tmp_path)
    monkeypatch.setattr(models, "_read_here", {})  # another agent
    folder.breaks_at = ""

    found = folder.look(tmp_path)

    assert folder.read == ["a", "b", "c"]
    assert folder.look(tmp_path) == found and folder.read == ["a", "b", "c"]
    assert "3 of 3" in folder.said[-1]


def test_weights_read_before_the_instance_has_a_folder_are_kept_once_it_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Folder(tmp_path / "model", monkeypatch)
    instance = tmp_path / "instance"
    first = folder.look(instance)
    instance.mkdir()

    assert folder.look(instance) == first
    assert folder.read == ["a", "b", "c"]
    assert len(json.loads((instance / "digests.json").read_text())) == 3


@pytest.mark.parametrize(
    ("wanted", "wait_s"),
    [
        (None, LOOK_S),
        ({"target": {"folder": "/m", "weights": False}}, LOOK_S),
        ({"target": {"folder": "/m", "weights": False}, "draft": {"folder": "/d", "weights": True}}, WEIGHTS_S),
    ],
)
def test_a_look_at_weights_is_given_the_time_to_read_them(wanted: Any, wait_s: float) -> None:
    asked: dict[str, Any] = {}

    class Host:
        spec = HostSpec(name="gpu-a", address="gpu-a")

        def call(self, verb: str, **kwargs: Any) -> dict[str, Any]:
            asked.update(kwargs)
            return {}

    observe(Host(), models=wanted)  # type: ignore[arg-type]

    assert asked["wait_s"] == wait_s


def container(name: str) -> dict[str, Any]:
    return {
        "Id": name,
        "Name": f"/{name}",
        "Config": {"Image": "torch:2", "Env": []},
        "HostConfig": {"DeviceRequests": [{"Capabilities": [["gpu"]]}]},
    }


def test_a_container_that_ends_while_it_is_looked_at_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(argv: list[str], **_: Any) -> "subprocess.CompletedProcess[str]":
        out, code = {
            "ps": ("training gone", 0),
            "info": ("runc", 0),
            "inspect": (json.dumps([container("training")]), 1),
        }[argv[1]]
        return subprocess.CompletedProcess(argv, code, out, "Error: No such object: gone" if code else "")

    monkeypatch.setattr(containers.shutil, "which", lambda _: "/usr/bin/docker")
    monkeypatch.setattr(subprocess, "run", run)

    assert [c["name"] for c in containers.gpu_containers("/nowhere")] == ["training"]


class Units:
    """systemd with one unit; what was asked of it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, need_reload: str, load_state: str) -> None:
        self.asked: list[str] = []
        self.shown = {"LoadState": load_state, "NeedDaemonReload": need_reload, "UnitFileState": "enabled"}
        monkeypatch.setattr(systemd, "UNIT_DIR", str(folder))
        monkeypatch.setattr(systemd, "_show", lambda *_: self.shown)
        monkeypatch.setattr(systemd, "_systemctl", lambda *argv, **_: self.asked.append(argv[0]))
        colleague = {"id": "c", "name": "training", "image": "torch:2", "named": False}
        monkeypatch.setattr(systemd.containers, "reload_danger", lambda _: {"containers": [colleague]})
        monkeypatch.setattr(systemd.containers, "gpu_containers", lambda _: [])


@pytest.mark.parametrize(
    ("installed", "need_reload", "load_state", "refused"),
    [
        ("same", "yes", "loaded", True),  # somebody wrote a drop-in
        ("same", "no", "loaded", False),
        ("older", "no", "loaded", True),
        (None, "no", "not-found", False),
    ],
)
def test_no_reload_goes_over_the_heads_of_gpu_containers(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    installed: str | None,
    need_reload: str,
    load_state: str,
    refused: bool,
) -> None:
    units = Units(tmp_path, monkeypatch, need_reload=need_reload, load_state=load_state)
    source = tmp_path / "source"
    source.write_text("same")
    if installed is not None:
        (tmp_path / "engine.service").write_text(installed)
    keeper = systemd.Supervisor(instance="default", instance_dir=str(tmp_path))

    if refused:
        with pytest.raises(VerbError, match=r"training \(torch:2\)"):
            keeper._install(str(source), "engine.service")
        assert (tmp_path / "engine.service").read_text() == installed
    else:
        keeper._install(str(source), "engine.service")
    assert units.asked == []
