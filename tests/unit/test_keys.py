"""The engine's keys are found on the host: if this fails, a server with a key cannot be drained, gated or read."""

from pathlib import Path

from ops.config.profiles import load_profile
from ops.remote import keys
from ops.render.argv import secrets_file


def instance(folder: Path, repository: Path, values: dict[str, str]) -> Path:
    profile = load_profile(repository, "baseline").model_copy(update={"secrets": tuple(values)})
    (folder / "current").mkdir()
    (folder / "current" / keys.SECRETS_FILE).write_bytes(secrets_file(profile, values))
    return folder


def test_a_key_is_read_as_it_was_rendered_whatever_is_in_it(tmp_path: Path, repository: Path) -> None:
    folder = instance(tmp_path, repository, {"SGLANG_API_KEY": 'a "b": c\\n#'})
    assert keys.read(keys.reference(str(folder), "api-key")) == 'a "b": c\\n#'


def test_the_first_key_that_the_engine_has_is_taken(tmp_path: Path, repository: Path) -> None:
    both = {"SGLANG_API_KEY": "user", "SGLANG_ADMIN_API_KEY": "admin"}
    folder = instance(tmp_path, repository, both)
    assert keys.read(keys.reference(str(folder), "admin-api-key", "api-key")) == "admin"


def test_an_engine_without_keys_is_asked_without_one(tmp_path: Path) -> None:
    assert keys.read(keys.reference(str(tmp_path), "api-key")) is None
    assert keys.read(None) is None and keys.read("given") == "given"


def test_secrets_of_every_linked_release_are_known_for_hiding(tmp_path: Path, repository: Path) -> None:
    folder = instance(tmp_path, repository, {"SGLANG_API_KEY": 'sec"ret-one'})
    (folder / "current" / "manifest.json").write_text('{"secrets": ["HF_TOKEN", "SGLANG_API_KEY"]}')
    (folder / "current" / "engine.env").write_text("NCCL_PROTO=LL\nHF_TOKEN=hf_sentinel\n")
    assert keys.secret_values(str(folder)) == {b'sec\\"ret-one', b"hf_sentinel"}
