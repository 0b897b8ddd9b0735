"""Secrets stay in 0600 files on the host: if this fails, an API key can be read by whoever sees a log or a document."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from rig import Client, Done, lay_down_project

from ops.sandbox.host import Sandbox

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(120)]

KEY, TOKEN = "sk-sentinel-key-0451", "hf-sentinel-token-0451"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = lay_down_project(tmp_path / "project")
    file = folder / "envs" / "profiles" / "good.yaml"
    profile = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump(profile | {"secrets": ["SGLANG_API_KEY", "HF_TOKEN"]}))
    (folder / ".env").write_text(f"SGLANG_API_KEY={KEY}\nHF_TOKEN={TOKEN}\n")
    return folder


@pytest.fixture
def box(project: Path) -> Iterator[Sandbox]:
    made = Sandbox.up("secret", project=project, time_scale=50, noise="off", load_s=5)
    (project / "envs" / "hosts.yml").write_text(made.inventory.read_text())
    yield made
    made.down()


def ops(project: Path, *argv: str) -> Done:
    return Client([*argv, "--host", "secret", "--json"], project).wait()


def test_a_server_with_keys_is_deployed_read_and_stopped_and_nothing_shows_them(project: Path, box: Sandbox) -> None:
    said = [ops(project, "deploy", "--profile", "good")]
    assert said[0].code == 0, said[0].stdout
    argv = [process.title for process in box.processes()]
    assert any("sglang.launch_server" in words for words in argv)
    said += [ops(project, *words) for words in (("status",), ("gate",), ("logs", "--lines", "1000"), ("history",))]
    status = said[1].host
    assert status["last_tok_s"], "a server with a key was not asked with it"
    said.append(ops(project, "stop"))
    assert [done.code for done in said] == [0] * 6, [done.stderr for done in said]
    assert said[3].document["lines"] and said[4].document["events"]

    for secret in (KEY, TOKEN):
        assert not any(secret in words for words in argv)
        assert not [done.stdout for done in said if secret in done.stdout + done.stderr]
        held = [path for path in (box.root / "default").rglob("*") if path.is_file() and secret in _text(path)]
        for path in held:
            assert path.name in ("engine.env", "secrets.yaml") or path.parent.name == "logs", f"{path} holds a secret"
            assert not path.stat().st_mode & 0o007, f"{path} can be read by everybody"
        assert held, "the secret never reached the host"


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if os.access(path, os.R_OK) else ""
