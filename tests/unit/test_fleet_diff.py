"""What a dry run shows: if this fails, it hides a change, invents one, or prints a secret."""

from pathlib import Path
from typing import Any

from ops.fleet.diff import differences, secret_names
from ops.model.profile import Profile
from ops.model.release import Release
from ops.remote import files
from tests.unit.release_hosts import lay_down, rendered

SENTINEL = "hub-5ecre7-0f-the-5en7ine1"
OTHER = "another-5ecre7"


def host_with(instance: Path, release: Release) -> dict[str, Any]:
    """Facts of a host on which `release` lies and runs."""
    lay_down(release, instance / "releases" / release.id)
    return {
        "links": {"current": release.id, "last-good": release.id, "baseline": None, "pending": None},
        "manifests": {release.id: release.manifest},
        "engine": {"state": "running"},
    }


def shown(instance: Path, facts: dict[str, Any], release: Release) -> list[dict[str, str]]:
    secrets = secret_names(Profile.model_validate(release.manifest["profile"]), facts)
    on_host = files.read(print, instance_dir=str(instance), release=facts["links"]["current"], secrets=secrets)
    return differences(release, secrets, on_host, facts, "/opt/ops/default")


def test_the_same_release_shows_no_difference(project: Path, tmp_path: Path) -> None:
    release = rendered(project, "eagle3-2step")

    assert shown(tmp_path, host_with(tmp_path, release), release) == []


def test_an_altered_file_is_the_only_difference(project: Path, tmp_path: Path) -> None:
    release = rendered(project, "eagle3-2step")
    facts = host_with(tmp_path, release)
    launch = tmp_path / "releases" / release.id / "launch.sh"
    launch.write_text(launch.read_text() + "# by hand\n")

    found = shown(tmp_path, facts, release)

    assert [diff["after_header"] for diff in found] == ["/opt/ops/default/current/launch.sh"]
    assert found[0]["before"] == found[0]["after"] + "# by hand\n"


def test_a_file_that_is_gone_or_too_many_is_shown(project: Path, tmp_path: Path) -> None:
    release = rendered(project, "eagle3-2step")
    facts = host_with(tmp_path, release)
    folder = tmp_path / "releases" / release.id
    (folder / "launch.sh").unlink()
    (folder / "extra").write_text("who put this here\n")

    found = {diff["after_header"]: diff for diff in shown(tmp_path, facts, release)}

    assert found["/opt/ops/default/current/launch.sh"]["before"] == ""
    assert found["/opt/ops/default/current/extra"]["after"] == ""


def test_another_profile_shows_its_flags_and_where_the_links_will_point(project: Path, tmp_path: Path) -> None:
    old, new = rendered(project, "eagle3-2step"), rendered(project, "eagle3-3step")

    found = {diff["after_header"]: diff for diff in shown(tmp_path, host_with(tmp_path, old), new)}

    assert "--speculative-num-steps 3" in found["/opt/ops/default/current/launch.sh"]["after"]
    links = found["/opt/ops/default (links)"]
    assert f"current -> {old.id}\n" in links["before"]
    assert f"current -> {new.id}\n" in links["after"]


def test_an_engine_that_does_not_run_is_a_difference(project: Path, tmp_path: Path) -> None:
    release = rendered(project, "eagle3-2step")
    facts = host_with(tmp_path, release) | {"engine": {"state": "stopped"}}

    assert [diff["after_header"] for diff in shown(tmp_path, facts, release)] == ["/opt/ops/default (engine)"]


def test_a_secret_is_never_shown_but_that_it_differs_is(project: Path, tmp_path: Path) -> None:
    wanted = {"secrets": ["HF_TOKEN", "SGLANG_API_KEY"]}
    old = rendered(project, "eagle3-2step", overrides=wanted, secrets={"HF_TOKEN": SENTINEL, "SGLANG_API_KEY": OTHER})
    new = rendered(project, "eagle3-2step", overrides=wanted, secrets={"HF_TOKEN": OTHER, "SGLANG_API_KEY": SENTINEL})
    facts = host_with(tmp_path, old)

    found = shown(tmp_path, facts, new)

    assert {diff["after_header"].rpartition("/")[2] for diff in found} == {"engine.env", "secrets.yaml"}
    assert all("values of secrets differ (not shown)" in diff["before"] for diff in found)
    assert SENTINEL not in str(found)
    assert OTHER not in str(found)
    assert shown(tmp_path, facts, old) == []


def test_a_secret_that_only_the_old_release_knew_is_not_shown(project: Path, tmp_path: Path) -> None:
    old = rendered(project, "eagle3-2step", overrides={"secrets": ["HF_TOKEN"]}, secrets={"HF_TOKEN": SENTINEL})
    new = rendered(project, "eagle3-2step")

    found = shown(tmp_path, host_with(tmp_path, old), new)

    environment = next(diff for diff in found if diff["after_header"].endswith("engine.env"))
    assert "HF_TOKEN=(secret)\n" in environment["before"]
    assert SENTINEL not in str(found)
