"""Secrets from Ansible Vault and the environment: if this fails, a key is readable where it should not be."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from fleet_rig import Fleet, fleet

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(1200)]

KEY = "key-5en7ine1-a1b2c3d4e5"
TOKEN = "hub-5en7ine1-f6a7b8c9d0"
NEW_TOKEN = "hub-5en7ine1-0000000001"
VAULT_PASSWORD = "vault-5en7ine1-pass"
SENTINEL = "5en7ine1"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """One host; its profiles need two secrets."""
    with fleet(tmp_path_factory.mktemp("fleet"), names=("alpha",)) as found:
        found.change_profile("baseline", secrets=["HF_TOKEN", "SGLANG_API_KEY"])
        yield found


def vault(hosts: Fleet, token: str) -> list[str]:
    """An encrypted variables file, and the words that open it."""
    password = hosts.project.parent / "vault-password"
    password.write_text(VAULT_PASSWORD)
    file = hosts.project / "envs" / "vault.yml"
    file.write_text(yaml.safe_dump({"ops_secrets": {"HF_TOKEN": token, "SGLANG_API_KEY": KEY}}))
    subprocess.run(
        [sys.executable, "-m", "ansible", "vault", "encrypt", "--vault-password-file", str(password), str(file)],
        check=True,
        capture_output=True,
    )
    assert SENTINEL not in file.read_text()
    return ["-e", f"@{file}", "--vault-password-file", str(password)]


def readable_places(hosts: Fleet) -> dict[str, str]:
    """Everything outside the 0600 files in which a secret could be read."""
    box = hosts.boxes["alpha"]
    places = {f"command line of {p.pid}": p.title for p in box.processes()}
    for process in box.processes():
        try:
            places[f"argv of {process.pid}"] = (
                Path(f"/proc/{process.pid}/cmdline").read_bytes().decode(errors="replace")
            )
        except OSError:
            continue
    for path in box.root.rglob("*"):
        # SGLang itself prints its arguments with the key, so its log is for its user's group and no further.
        others = 0o007 if path.suffix == ".log" else 0o077
        if path.is_file() and not path.is_symlink() and path.stat().st_mode & others:
            places[str(path)] = path.read_bytes().decode(errors="replace")
    return places


def leaks(places: dict[str, str]) -> list[str]:
    return [name for name, text in places.items() if SENTINEL in text]


def private_files(hosts: Fleet) -> list[str]:
    """Names of the files that hold a secret, wherever they are on the host; the engine's own log left out."""
    files = [path for path in hosts.boxes["alpha"].root.rglob("*") if path.is_file() and path.suffix != ".log"]
    return sorted({path.name for path in files if SENTINEL.encode() in path.read_bytes()})


def test_a_key_from_the_vault_reaches_the_engine_and_nothing_that_can_be_read(hosts: Fleet) -> None:
    words = vault(hosts, TOKEN)

    played = hosts.play("deploy.yml", "-e", "profile=good", "-e", "target=gpu", "-vvvv", "--diff", *words)

    assert played.code == 0, str(played)
    assert SENTINEL not in played.stdout + played.stderr
    assert private_files(hosts) == ["engine.env", "secrets.yaml"], "the keys did not arrive, or elsewhere as well"
    assert leaks(readable_places(hosts)) == []

    again = hosts.play("deploy.yml", "-e", "profile=good", "-e", "target=gpu", *words)
    assert again.recap("changed") == {"alpha": 0}, str(again)


def test_a_dry_run_says_that_a_secret_differs_and_not_which(hosts: Fleet) -> None:
    words = vault(hosts, NEW_TOKEN)

    dry = hosts.play("deploy.yml", "-e", "profile=next", "-e", "target=gpu", "-vvvv", "--check", "--diff", *words)

    assert dry.code == 0, str(dry)
    assert SENTINEL not in dry.stdout + dry.stderr
    assert "HF_TOKEN=(secret)" in dry.stdout


def test_a_failing_deploy_tells_no_secret(hosts: Fleet) -> None:
    hosts.boxes["alpha"].fault("crash-during-load", "next")
    words = vault(hosts, TOKEN)

    failed = hosts.play("deploy.yml", "-e", "profile=next", "-e", "target=gpu", "-vvvv", "--diff", *words)

    assert failed.code == 2, str(failed)
    assert "Rolled back" in failed.stdout
    assert SENTINEL not in failed.stdout + failed.stderr
    assert leaks(readable_places(hosts)) == []
    hosts.boxes["alpha"].clear_faults()


def test_a_missing_secret_is_named_and_nothing_is_touched(hosts: Fleet) -> None:
    journal = hosts.journal("alpha")

    played = hosts.play("deploy.yml", "-e", "profile=good", "-e", "target=gpu")

    assert played.code == 2, str(played)
    assert "HF_TOKEN, SGLANG_API_KEY" in played.stdout + played.stderr
    assert hosts.journal("alpha") == journal


def test_ops_with_secrets_from_the_environment_prints_none_of_them(
    hosts: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    (hosts.project / ".env").write_text(f"HF_TOKEN={TOKEN}\nSGLANG_API_KEY={KEY}\n")

    done = hosts.ops("deploy", "--profile", "third")
    assert done.code == 0, done.stderr
    logs = hosts.alone("logs", "--host", "alpha", "--lines", "2000")
    shown = [hosts.ops("status"), hosts.ops("verify"), logs, done]

    assert [each.code for each in shown] == [0] * 4, [each.stderr for each in shown]
    assert logs.document["lines"]
    assert all(SENTINEL not in each.stdout + each.stderr for each in shown)
    assert leaks(readable_places(hosts)) == []
    assert private_files(hosts) == ["engine.env", "secrets.yaml"]
