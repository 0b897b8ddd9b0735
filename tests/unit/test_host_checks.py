"""Preflight judgements of a host, on facts as they were seen. What they let pass ends in a crash after a long load."""

from typing import Any

import pytest

from ops.checks import (
    Check,
    Question,
    clock,
    daemon_reload,
    driver,
    gpu_errors,
    gpus,
    login_files,
    open_files,
    run_as,
)
from ops.checks import models as models_check
from ops.checks import zombies as zombies_check
from ops.config import resolve_profile
from ops.flows import preflight
from ops.model.inventory import HostSpec
from ops.model.profile import Profile
from ops.model.verdict import Outcome, Verdict
from ops.sandbox.models import DRAFT_CONFIG, TARGET_CONFIG

SPEC = HostSpec(name="gpu-a", address="gpu-a")
HOLDER = {
    "pid": 41,
    "gpu_uuid": "GPU-1",
    "used_mib": 40_000,
    "process_name": "python",
    "user": "ada",
    "ppid": 1,
    "state": "S",
    "age_s": 7_500,
}
COLLEAGUE = {"id": "c1", "name": "training", "image": "torch:2", "named": False}


@pytest.fixture(scope="module")
def profile(repository: Any) -> Profile:
    return resolve_profile(repository, "eagle3-2step").profile


def facts(**changes: Any) -> dict[str, Any]:
    device = {"index": 0, "uuid": "GPU-1", "name": "RTX", "driver": "580.65.06"}
    whole = {
        "time": 1_000.0,
        "observed_at": 1_000.4,
        "user": "root",
        "uid": 0,
        "users": ["root", "sglang"],
        "supervisor": "systemd",
        "processes": [],
        "gpus": {"devices": [device] * 8, "holders": []},
        "gpu_problem": "",
        "xids": [],
        "zombies": [],
        "reload": {"cgroup_driver": "systemd", "char_links": False, "containers": []},
        "unit_loaded": True,
        "unit_stale": False,
        "links": {"current": None},
        "manifests": {},
        "limits": {"nofile": [1024, 1_048_576], "memlock": [-1, -1]},
        "login_files": [],
    }
    return {**whole, **changes}


def asked(check: Check, profile: Profile, **changes: Any) -> Verdict:
    return check.judge(Question(check.name, check.question), facts(**changes), profile, SPEC)


@pytest.mark.parametrize(
    "check",
    [
        clock.CHECK,
        daemon_reload.CHECK,
        driver.CHECK,
        gpu_errors.CHECK,
        gpus.CHECK,
        login_files.CHECK,
        open_files.CHECK,
        run_as.CHECK,
        zombies_check.CHECK,
    ],
    ids=lambda check: check.name,
)
def test_a_healthy_host_passes(check: Check, profile: Profile) -> None:
    assert asked(check, profile).outcome is Outcome.PASS


@pytest.mark.parametrize(("host_time", "words"), [(3_600.0, "ahead of"), (-3_600.0, "behind")])
def test_a_clock_an_hour_off_is_refused_with_its_direction(profile: Profile, host_time: float, words: str) -> None:
    found = asked(clock.CHECK, profile, time=1_000.0 + host_time)
    assert found.outcome is Outcome.FAIL
    assert words in found.message


def test_a_foreign_holder_is_named_with_user_and_age_and_a_pid_of_another_namespace_as_such(profile: Profile) -> None:
    here = asked(gpus.CHECK, profile, gpus={**facts()["gpus"], "holders": [HOLDER]})
    elsewhere = {**HOLDER, "user": "", "state": None, "age_s": None}
    hidden = asked(gpus.CHECK, profile, gpus={**facts()["gpus"], "holders": [elsewhere]})

    assert "pid 41 of ada (python, running 2 h 5 min) holds 40000 MiB" in here.message
    assert "no such process here" in hidden.message
    assert here.outcome is hidden.outcome is Outcome.FAIL


def test_a_gpu_is_needed_for_each_rank_of_each_replica(profile: Profile) -> None:
    two = profile.model_copy(update={"engine": profile.engine.model_copy(update={"flags": {"dp-size": 2}})})
    found = asked(gpus.CHECK, two)

    assert asked(gpus.CHECK, profile).outcome is Outcome.PASS
    assert (found.outcome, "8 GPUs, but tensor parallel over 16" in found.message) == (Outcome.FAIL, True)


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        ({"gpu_problem": "Failed to initialize NVML: Driver/library version mismatch", "gpus": None}, Outcome.FAIL),
        ({"gpu_problem": "there is no nvidia-smi", "gpus": None}, Outcome.INCONCLUSIVE),
        ({"candidate": {"stack": {"cuda": "13.0"}}}, Outcome.PASS),
        ({"candidate": {"stack": {"cuda": None}}}, Outcome.PASS),
    ],
)
def test_the_drivers_own_words_decide(profile: Profile, said: dict[str, Any], outcome: Outcome) -> None:
    assert asked(driver.CHECK, profile, **said).outcome is outcome


@pytest.mark.parametrize(
    ("version", "cuda", "outcome"),
    [
        ("550.127.05", "13.0", Outcome.FAIL),
        ("580.65.06", "13.0", Outcome.PASS),
        ("525.60.13", "12.9", Outcome.PASS),
        ("520.61.05", "12.4", Outcome.FAIL),
        ("600.1", "14.0", Outcome.PASS),
    ],
)
def test_a_driver_older_than_the_cuda_of_the_stack_is_refused(
    profile: Profile, version: str, cuda: str, outcome: Outcome
) -> None:
    seen = {"devices": [{"driver": version}], "holders": []}
    assert asked(driver.CHECK, profile, gpus=seen, candidate={"stack": {"cuda": cuda}}).outcome is outcome


def test_an_xid_that_needs_a_reset_is_refused_and_a_harmless_one_is_not(profile: Profile) -> None:
    fallen = {"device": "PCI:0000:41:00", "code": 79, "line": "NVRM: Xid (PCI:0000:41:00): 79, ..."}
    user_fault = {"device": "PCI:0000:41:00", "code": 31, "line": "NVRM: Xid (PCI:0000:41:00): 31, ..."}

    assert asked(gpu_errors.CHECK, profile, xids=[user_fault, fallen]).outcome is Outcome.FAIL
    assert asked(gpu_errors.CHECK, profile, xids=[user_fault]).outcome is Outcome.PASS


def test_a_kernel_log_that_nobody_can_read_is_no_answer_and_no_refusal(profile: Profile) -> None:
    found = asked(gpu_errors.CHECK, profile, xids=None)
    assert found.outcome is Outcome.SKIPPED
    assert "cannot be read" in found.message
    preflight.require([found, asked(clock.CHECK, profile)], "gpu-a")


@pytest.mark.parametrize(
    ("weights", "outcome"), [("e" * 64, Outcome.PASS), ("f" * 64, Outcome.FAIL), (None, Outcome.INCONCLUSIVE)]
)
def test_pinned_weights_that_are_not_there_are_not_as_pinned(
    profile: Profile, weights: str | None, outcome: Outcome
) -> None:
    target = profile.target.model_copy(update={"weights_sha256": "e" * 64})
    seen = {
        "target": {"path": "/t", "config": TARGET_CONFIG, "config_sha256": "a" * 64, "weights_sha256": weights},
        "draft": {"path": "/d", "config": DRAFT_CONFIG, "config_sha256": "b" * 64, "weights_sha256": None},
    }
    found = asked(models_check.CHECK, profile.model_copy(update={"target": target}), models=seen)
    assert found.outcome is outcome, found.line()


def test_memory_behind_a_zombie_is_refused_with_its_parent(profile: Profile) -> None:
    held = {**facts()["gpus"], "holders": [{**HOLDER, "state": "Z", "ppid": 7}]}
    found = asked(zombies_check.CHECK, profile, gpus=held)
    assert found.outcome is Outcome.FAIL
    assert "parent 7" in found.message


def test_a_process_table_full_of_zombies_is_refused(profile: Profile) -> None:
    many = [{"pid": n, "ppid": 1, "name": "python", "parent": "tail -f /dev/null"} for n in range(200)]
    found = asked(zombies_check.CHECK, profile, zombies=many)
    assert found.outcome is Outcome.FAIL
    assert "tail -f /dev/null" in found.message


# Case HOST-01: a reload is refused only where somebody could lose GPUs by it.
DANGER = {"cgroup_driver": "systemd", "char_links": False, "containers": [COLLEAGUE]}
UNIT = {"engine.service": {"sha256": "a"}}
THERE: dict[str, Any] = {"links": {"current": "r"}, "manifests": {"r": {"files": UNIT}}}


def test_a_changed_unit_beside_a_gpu_container_is_refused(profile: Profile) -> None:
    other = {"files": {"engine.service": {"sha256": "b"}}}
    found = asked(daemon_reload.CHECK, profile, reload=DANGER, candidate=other, **THERE)
    assert found.outcome is Outcome.FAIL
    assert "training (torch:2)" in found.message


def test_the_same_unit_needs_no_reload(profile: Profile) -> None:
    found = asked(daemon_reload.CHECK, profile, reload=DANGER, candidate={"files": UNIT}, **THERE)
    assert found.outcome is Outcome.PASS


def test_a_unit_that_was_edited_beside_us_needs_a_reload_although_ours_is_the_same(profile: Profile) -> None:
    found = asked(daemon_reload.CHECK, profile, reload=DANGER, candidate={"files": UNIT}, unit_stale=True, **THERE)
    assert found.outcome is Outcome.FAIL
    assert "drop-in" in found.message


def test_a_first_unit_needs_no_reload(profile: Profile) -> None:
    assert asked(daemon_reload.CHECK, profile, reload=DANGER, unit_loaded=False).outcome is Outcome.PASS


def test_an_unknown_unit_is_taken_for_a_changed_one(profile: Profile) -> None:
    assert asked(daemon_reload.CHECK, profile, reload=DANGER).outcome is Outcome.FAIL


def test_too_few_open_files_are_refused_where_the_container_gives_them(profile: Profile) -> None:
    few = {"nofile": [1024, 1024], "memlock": [-1, -1]}
    assert asked(open_files.CHECK, profile, limits=few, supervisor="supervisord").outcome is Outcome.FAIL
    assert asked(open_files.CHECK, profile, limits=few).outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("user", "uid", "who", "outcome"),
    [
        ("sglang", 0, "root", Outcome.PASS),
        ("sglang", 1000, "deploy", Outcome.FAIL),
        ("deploy", 1000, "deploy", Outcome.PASS),
        ("ghost", 0, "root", Outcome.FAIL),
    ],
)
def test_only_root_starts_an_engine_as_somebody_else(
    profile: Profile, user: str, uid: int, who: str, outcome: Outcome
) -> None:
    wanted = profile.model_copy(update={"run_as": user})
    assert asked(run_as.CHECK, wanted, uid=uid, user=who).outcome is outcome


def test_variables_in_login_files_are_a_warning_not_a_refusal(profile: Profile) -> None:
    line = {"path": "/etc/environment", "line": 3, "text": "export NCCL_PROTO=LL"}
    found = asked(login_files.CHECK, profile, login_files=[line])
    assert found.outcome is Outcome.PASS
    assert found.evidence["warning"] is True
    assert "/etc/environment:3 sets `export NCCL_PROTO=LL`" in found.message
