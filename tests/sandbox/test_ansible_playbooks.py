"""Playbooks run by hand: if this fails, `ansible-playbook` and `ops` disagree, or a dry run touches a host."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from fleet_rig import PLAYBOOKS, Fleet, files, fleet

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Three hosts that serve `good`; a test leaves them so."""
    with fleet(tmp_path_factory.mktemp("fleet")) as found:
        played = found.play("deploy.yml", "-e", "profile=good", "-e", "target=gpu")
        assert played.code == 0, str(played)
        assert played.recap("changed") == {"alpha": 1, "beta": 1, "gamma": 1}
        yield found


def pids(hosts: Fleet) -> dict[str, set[int]]:
    """Launcher, ranks and detokenizer of each host; never empty."""
    found = {
        name: {process.pid for process in box.processes() if "sglang" in process.title}
        for name, box in hosts.boxes.items()
    }
    assert all(len(engine) >= 4 for engine in found.values()), found
    return found


def kept(hosts: Fleet) -> dict[str, dict[str, bytes]]:
    """Files of each host, without what the running engine and its daemons write by themselves."""
    return {
        name: {path: data for path, data in files(box.root).items() if "/logs/" not in path}
        for name, box in hosts.boxes.items()
    }


def test_a_second_run_changes_nothing_and_ops_agrees(hosts: Fleet) -> None:
    before = pids(hosts)

    again = hosts.play("deploy.yml", "-e", "profile=good", "-e", "target=gpu")
    assert again.code == 0, str(again)
    assert again.recap("changed") == {"alpha": 0, "beta": 0, "gamma": 0}

    same = hosts.ops("deploy", "--profile", "good")
    assert same.code == 0, same.stderr
    assert same.document["outcome"] == "unchanged"
    assert [(row["host"], row["changed"]) for row in same.document["hosts"]] == [
        ("alpha", False),
        ("beta", False),
        ("gamma", False),
    ]
    assert pids(hosts) == before


def test_a_dry_run_touches_nothing_and_shows_the_true_difference(hosts: Fleet) -> None:
    files_before, pids_before = kept(hosts), pids(hosts)
    journals = {name: hosts.journal(name) for name in hosts.boxes}

    dry = hosts.play("deploy.yml", "-e", "profile=next", "-e", "target=gpu", "--check", "--diff")

    assert dry.code == 0, str(dry)
    assert dry.recap("changed") == {"alpha": 1, "beta": 1, "gamma": 1}
    assert kept(hosts) == files_before
    assert pids(hosts) == pids_before
    assert {name: hosts.journal(name) for name in hosts.boxes} == journals
    assert "-    --speculative-num-steps 2 \\\n+    --speculative-num-steps 3 \\" in dry.stdout
    for name in hosts.boxes:
        assert f"-current -> {hosts.link(name, 'current')}" in dry.stdout

    real = hosts.ops("deploy", "--profile", "next")
    assert real.code == 0, real.stderr
    for row in real.document["hosts"]:
        assert f"+current -> {row['release']}" in dry.stdout, "the foretold release is not the one that came"
        launch = (hosts.boxes[row["host"]].root / "default" / "current" / "launch.sh").read_text()
        assert "--speculative-num-steps 3 \\" in launch
    assert hosts.serving() == dict.fromkeys(hosts.boxes, "next")

    back = hosts.play("rollback.yml", "-e", "target=gpu")
    assert back.code == 0, str(back)
    assert back.recap("changed") == {"alpha": 1, "beta": 1, "gamma": 1}
    assert hosts.serving() == dict.fromkeys(hosts.boxes, "good")


def test_a_file_altered_by_hand_on_one_host_is_shown_and_mended_there_only(hosts: Fleet) -> None:
    launch = hosts.boxes["beta"].root / "default" / "current" / "launch.sh"
    right = launch.read_text()
    launch.write_text(right.replace("--speculative-num-steps 2", "--speculative-num-steps 5"))
    others = {name: found for name, found in pids(hosts).items() if name != "beta"}

    dry = hosts.play("deploy.yml", "-e", "profile=good", "-e", "target=gpu", "--check", "--diff")
    assert dry.recap("changed") == {"alpha": 0, "beta": 1, "gamma": 0}, str(dry)
    assert "-    --speculative-num-steps 5 \\\n+    --speculative-num-steps 2 \\" in dry.stdout
    assert "--speculative-num-steps 5" in launch.read_text()

    mended = hosts.play("deploy.yml", "-e", "profile=good", "-e", "target=gpu")
    assert mended.code == 0, str(mended)
    assert mended.recap("changed") == {"alpha": 0, "beta": 1, "gamma": 0}
    assert launch.read_text() == right
    assert hosts.serving() == dict.fromkeys(hosts.boxes, "good")
    assert {name: found for name, found in pids(hosts).items() if name != "beta"} == others


def test_the_other_playbooks_run_by_hand_and_a_second_time_change_nothing(hosts: Fleet) -> None:
    site = hosts.play("site.yml", "-e", "profile=good", "-e", "target=gpu")
    assert site.code == 0, str(site)
    assert site.recap("changed") == {"alpha": 0, "beta": 0, "gamma": 0}

    stopped = hosts.play("stop.yml", "-e", "target=gpu", "--limit", "gamma")
    assert stopped.recap("changed") == {"gamma": 1}, str(stopped)
    assert hosts.serving()["gamma"] is None
    assert [process.title for process in hosts.boxes["gamma"].processes() if "sglang" in process.title] == []
    assert hosts.admitted("gamma") is None
    assert hosts.play("stop.yml", "-e", "target=gpu", "--limit", "gamma").recap("changed") == {"gamma": 0}

    again = hosts.play("deploy.yml", "-e", "profile=good", "-e", "target=gpu")
    assert again.code == 0, str(again)
    assert again.recap("changed") == {"alpha": 0, "beta": 0, "gamma": 1}
    assert hosts.serving() == dict.fromkeys(hosts.boxes, "good")


def test_a_playbook_without_a_profile_asks_for_one(hosts: Fleet) -> None:
    played = hosts.play("deploy.yml", "-e", "target=gpu")

    assert played.code != 0
    assert "which profile?" in played.stdout + played.stderr
    assert hosts.serving() == dict.fromkeys(hosts.boxes, "good")


def test_each_plugin_is_documented_with_all_its_options() -> None:
    names = sorted(file.stem for file in (PLAYBOOKS / "action_plugins").glob("ops_*.py"))
    assert {"ops_gate", "ops_release"} <= set(names)

    done = subprocess.run(
        [sys.executable, "-m", "ansible", "doc", "--json", "-M", str(PLAYBOOKS / "library"), *names],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    documents = json.loads(done.stdout)
    assert sorted(documents) == names
    for name, document in documents.items():
        examples = yaml.safe_load(document["examples"])
        allowed = set(document["doc"].get("options") or {})
        for task in examples:
            assert set(task[name] or {}) <= allowed, f"{name}: its example uses an unknown option"


def test_playbooks_pass_ansible_lint_in_its_production_profile(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ansiblelint", "--offline", "--nocolor", "."],
        cwd=PLAYBOOKS,
        env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "Profile 'production' was required, and it passed" in done.stdout + done.stderr


def test_a_wrong_option_is_refused_before_any_host_is_asked(hosts: Fleet, tmp_path: Path) -> None:
    file = hosts.project / "wrong.yml"
    task = {"name": "Wrong", "ops_release": {"state": "here"}}
    play = {"name": "Wrong", "hosts": "alpha", "gather_facts": False, "tasks": [task]}
    file.write_text(yaml.safe_dump([play]))

    played = hosts.play(str(file), environment={"ANSIBLE_ACTION_PLUGINS": str(PLAYBOOKS / "action_plugins")})

    assert played.code == 2, str(played)
    assert "must be one of: present, good, absent, got: here" in (played.stdout + played.stderr).replace("\n", " ")
