"""What a lock is: the same bytes on any machine, every file by digest, no word about where files come from.

When these fail, two people lock the same stack to different software, or a package one version off turns an accept
length of 2.8 into 1.0 without anybody having changed anything.
"""

import base64
import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
import yaml

from ops.config.profiles import load_stack, names_in
from ops.errors import ConfigError
from ops.model.base import RulesBroken
from ops.model.stack import Image, Stack, StackLock, SystemPackages
from ops.remote import stack_probe
from ops.stacks.check import check
from ops.stacks.compare import differences, stale
from ops.stacks.lock import covers, lock_bytes, lock_path, make_lock, need_lock, read_lock, requirements, wanted_digest
from ops.stacks.resolve import resolve, target_tags

SHIPPED = Path(__file__).resolve().parents[2]
SHIPPED_STACKS = ("kimi-k25-eagle3", "kimi-k25-eagle3-story", "sandbox")


def wheel(
    folder: Path,
    name: str,
    version: str,
    tag: str = "py3-none-any",
    *,
    needs: str = "",
    files: Mapping[str, bytes] = MappingProxyType({}),
) -> Path:
    """Write a wheel with a true RECORD."""
    folder.mkdir(parents=True, exist_ok=True)
    package = name.replace("-", "_")
    info = f"{package}-{version}.dist-info"
    requires = f"Requires-Dist: {needs}\n" if needs else ""
    content = {f"{package}/__init__.py": f"version = {version!r}\n".encode(), **files}
    content[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}".encode()
    content[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n".encode()
    rows = [f"{path},sha256={hash_of(data)},{len(data)}\n" for path, data in sorted(content.items())]
    content[f"{info}/RECORD"] = ("".join(rows) + f"{info}/RECORD,,\n").encode()
    path = folder / f"{package}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in sorted(content.items()):
            archive.writestr(zipfile.ZipInfo(member, (2020, 1, 1, 0, 0, 0)), data)
    return path


def hash_of(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that the resolver sees, and nothing else: no index is asked."""
    folder = tmp_path / "index"
    folder.mkdir()
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("UV_DEFAULT_INDEX", (tmp_path / "empty").as_uri())
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    return folder


def stack(**changes: object) -> Stack:
    wanted = {"name": "small", "engine_version": "0.5.23", "python": "3.12", "requirements": ["sglang==0.5.23"]}
    return Stack.model_validate({**wanted, **changes})


def engine_index(index: Path) -> None:
    wheel(index, "sglang", "0.5.23", needs="sglang-kernel>=0.4")
    for tag in ("cp312-cp312-manylinux_2_28_x86_64", "cp311-cp311-manylinux_2_28_x86_64", "cp312-cp312-win_amd64"):
        wheel(index, "sglang-kernel", "0.4.10", tag)


# -- locking -----------------------------------------------------------------------------------------------------------


def test_locking_twice_gives_the_same_bytes(index: Path, tmp_path: Path) -> None:
    engine_index(index)

    first = lock_bytes(make_lock(stack(), tmp_path))

    assert lock_bytes(make_lock(stack(), tmp_path)) == first
    assert lock_bytes(make_lock(stack(), tmp_path, known=StackLock.model_validate_json(first))) == first


def test_the_target_platform_decides_and_not_the_machine_that_locks(index: Path, tmp_path: Path) -> None:
    engine_index(index)

    for python, file in (
        ("3.12", "sglang_kernel-0.4.10-cp312-cp312-manylinux_2_28_x86_64.whl"),
        ("3.11", "sglang_kernel-0.4.10-cp311-cp311-manylinux_2_28_x86_64.whl"),
    ):
        kernel = make_lock(stack(python=python), tmp_path).package("sglang-kernel")
        assert kernel is not None
        assert kernel.file == file
        assert kernel.sha256 == hashlib.sha256((index / file).read_bytes()).hexdigest()


def test_a_package_without_a_wheel_for_the_platform_is_refused_by_name(index: Path, tmp_path: Path) -> None:
    wheel(index, "sglang", "0.5.23", "cp312-cp312-manylinux_2_34_x86_64")

    with pytest.raises(ConfigError, match=r"sglang.*manylinux_2_34"):
        make_lock(stack(platform="x86_64-manylinux_2_28"), tmp_path)
    assert make_lock(stack(platform="x86_64-manylinux_2_34"), tmp_path).package("sglang") is not None


def test_the_stacks_own_wheel_wins_over_an_index_that_has_the_same_version(index: Path, tmp_path: Path) -> None:
    wheel(index, "sglang", "0.5.23", "cp312-cp312-manylinux_2_28_x86_64")
    own = wheel(tmp_path / "own", "sglang", "0.5.23", files={"sglang/patched.py": b"x = 1\n"})
    digest = hashlib.sha256(own.read_bytes()).hexdigest()

    lock = make_lock(stack(wheels=[{"file": f"own/{own.name}", "sha256": digest}]), tmp_path)

    assert [p.sha256 for p in lock.packages] == [digest]
    assert (
        requirements(lock, {own.name: "/build/own.whl"}) == f"sglang @ file:///build/own.whl --hash=sha256:{digest}\n"
    )


def test_a_wheel_beside_the_stack_that_changed_is_refused(index: Path, tmp_path: Path) -> None:
    own = wheel(tmp_path, "sglang", "0.5.23")

    with pytest.raises(ConfigError, match=f"wheel {own.name} is not the pinned one"):
        make_lock(stack(wheels=[{"file": own.name, "sha256": "0" * 64}]), tmp_path)


def test_another_engine_than_the_file_says_is_refused(index: Path, tmp_path: Path) -> None:
    engine_index(index)

    with pytest.raises(ConfigError, match=r"sglang 0\.5\.23, engine_version says 0\.5\.17"):
        make_lock(stack(engine_version="0.5.17"), tmp_path)


def test_kernels_without_code_for_the_wanted_gpu_are_refused(index: Path, tmp_path: Path) -> None:
    wheel(index, "sglang", "0.5.23", needs="sglang-kernel")
    wheel(index, "sglang-kernel", "0.4.10", files={"sgl_kernel/ops.so": fatbin(90, 100)})

    lock = make_lock(stack(gpu_archs=["sm_90"]), tmp_path)
    assert lock.kernel_archs == {"sglang-kernel": ("sm_90", "sm_100")}
    with pytest.raises(ConfigError, match="sglang-kernel holds GPU code for sm_90, sm_100, none for sm_120"):
        make_lock(stack(gpu_archs=["sm_120"]), tmp_path)


def test_a_patch_is_locked_with_the_file_it_makes(index: Path, tmp_path: Path) -> None:
    wheel(index, "sglang", "0.5.23", files={"sglang/worker.py": b"steps = 5\n"})
    text = "--- a/sglang/worker.py\n+++ b/sglang/worker.py\n@@ -1 +1 @@\n-steps = 5\n+steps = 2\n"
    (tmp_path / "steps.patch").write_text(text)
    pin = {"file": "steps.patch", "sha256": hashlib.sha256(text.encode()).hexdigest()}

    (patch,) = make_lock(stack(patches=[pin]), tmp_path).patches

    assert patch.result == {"sglang/worker.py": hashlib.sha256(b"steps = 2\n").hexdigest()}
    wheel(index, "sglang", "0.5.23", files={"sglang/worker.py": b"steps = 10\n"})
    with pytest.raises(ConfigError, match=r"steps\.patch does not apply to the locked engine"):
        make_lock(stack(patches=[pin]), tmp_path)


def test_a_base_images_digest_comes_from_the_registry_or_stays_null(index: Path, tmp_path: Path) -> None:
    engine_index(index)
    base = stack(base={"repository": "registry.internal/cuda", "tag": "13.0"})
    digest = f"sha256:{'d' * 64}"
    said: list[str] = []

    known = make_lock(base, tmp_path, read_digest=lambda image: digest)
    unknown = make_lock(base, tmp_path, read_digest=lambda image: None, say=said.append)

    assert known.base == Image(repository="registry.internal/cuda", tag="13.0", digest=digest)
    assert unknown.base is not None
    assert unknown.base.digest is None
    assert "images of this stack cannot be built yet" in said[-1]


# -- check and diff ----------------------------------------------------------------------------------------------------


def project(tmp_path: Path, document: Mapping[str, object]) -> Path:
    stacks = tmp_path / "project" / "envs" / "stacks"
    stacks.mkdir(parents=True, exist_ok=True)
    (stacks / "small.yaml").write_text(yaml.safe_dump(dict(document)))
    return tmp_path / "project"


def test_a_lock_is_old_when_its_file_changed_or_the_index_gives_something_else(index: Path, tmp_path: Path) -> None:
    engine_index(index)
    wanted: dict[str, object] = {"engine_version": "0.5.23", "python": "3.12", "requirements": ["sglang==0.5.23"]}
    root = project(tmp_path, wanted)

    def judged() -> tuple[str, ...]:
        return check(root, load_stack(root, "small"), read_digest=lambda image: None, say=lambda text: None).problems

    assert judged() == ("it has no lock",)
    lock_path(root, "small").write_bytes(lock_bytes(make_lock(load_stack(root, "small"), root)))
    assert judged() == ()

    wheel(index, "sglang-kernel", "0.4.11", "cp312-cp312-manylinux_2_28_x86_64")
    assert judged() == ("it resolves to something else: sglang-kernel: 0.4.10 -> 0.4.11",)

    project(tmp_path, {**wanted, "constraints": {"sglang-kernel": "0.4.10"}})
    assert judged() == ("the stack's file was changed after it was locked",)


def test_a_stack_that_resolves_no_more_is_found_wanting(index: Path, tmp_path: Path) -> None:
    engine_index(index)
    root = project(tmp_path, {"engine_version": "0.5.23", "python": "3.12", "requirements": ["sglang==0.5.23"]})
    lock_path(root, "small").write_bytes(lock_bytes(make_lock(load_stack(root, "small"), root)))
    for file in index.glob("sglang-*.whl"):
        file.unlink()

    found = check(root, load_stack(root, "small"), read_digest=lambda image: None, say=lambda text: None)

    assert len(found.problems) == 1
    assert found.problems[0].startswith("it does not resolve")


def test_a_description_does_not_make_a_lock_old_and_a_requirement_does() -> None:
    assert wanted_digest(stack()) == wanted_digest(stack(description="other words"))
    assert wanted_digest(stack()) != wanted_digest(stack(requirements=["sglang==0.5.22"]))


def test_the_difference_of_the_storys_stack_names_engine_nccl_kernels_and_packages() -> None:
    story, today = (need_lock(SHIPPED, name)[0] for name in ("kimi-k25-eagle3-story", "kimi-k25-eagle3"))

    lines = [difference.line() for difference in differences(story, today)]

    assert lines[0] == "engine_version: 0.5.9 -> 0.5.23"
    assert "nccl: 2.27.5 -> 2.30.7" in lines
    assert any(line.startswith("kernels of sglang-kernel: - -> sm_80") for line in lines)
    assert any(line.startswith("torch: 2.9.1 -> ") for line in lines)
    assert differences(today, today) == []


# -- what is shipped ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHIPPED_STACKS)
def test_a_shipped_lock_pins_every_file_says_no_address_and_is_the_stacks(name: str) -> None:
    lock, digest = need_lock(SHIPPED, name)
    text = lock_path(SHIPPED, name).read_text()

    assert stale(load_stack(SHIPPED, name), lock) == ""
    assert "://" not in text
    assert lock_bytes(lock).decode() == text
    assert all(package.record and len(package.sha256) == 64 for package in lock.packages)
    assert load_stack(SHIPPED, name).lock_sha256 == digest


def test_every_shipped_stack_that_asks_for_packages_has_a_lock_and_the_others_need_none() -> None:
    for name in names_in(SHIPPED, "stack"):
        found = check(SHIPPED, load_stack(SHIPPED, name), read_digest=None, say=print)
        assert found.problems == (), name
        assert ("nothing to lock" in found.summary) == (name not in SHIPPED_STACKS)


def test_no_shipped_base_image_has_a_digest_that_nobody_read() -> None:
    for name in names_in(SHIPPED, "stack"):
        base = load_stack(SHIPPED, name).base
        text = (SHIPPED / "envs" / "stacks" / f"{name}.yaml").read_text()
        assert base is None or base.digest is None or "Source:" in text, f"{name}: a digest needs its source beside it"


def test_the_storys_stack_has_its_engine_and_todays_kernels_run_on_blackwell() -> None:
    story, _ = need_lock(SHIPPED, "kimi-k25-eagle3-story")
    today, _ = need_lock(SHIPPED, "kimi-k25-eagle3")

    assert (story.engine_version, story.nccl, story.cuda) == ("0.5.9", "2.27.5", "12.8")
    assert (today.engine_version, today.nccl, today.cuda) == ("0.5.23", "2.30.7", "13.0")
    assert all(covers(archs, "sm_120") for archs in (*story.kernel_archs.values(), *today.kernel_archs.values()))


# -- parts -------------------------------------------------------------------------------------------------------------


def fatbin(*archs: int) -> bytes:
    """A CUDA fat binary with one piece of machine code for each architecture, inside some other bytes."""
    entries = b""
    for arch in archs:
        header = (2).to_bytes(2, "little") + bytes(2) + (64).to_bytes(4, "little") + (8).to_bytes(8, "little")
        entries += header + bytes(12) + arch.to_bytes(4, "little") + bytes(32) + b"machine!"
    head = b"\x50\xed\x55\xba" + (1).to_bytes(2, "little") + (16).to_bytes(2, "little")
    return b"\x7fELF" + bytes(100) + head + len(entries).to_bytes(8, "little") + entries + bytes(50)


def test_the_gpu_code_of_a_library_is_read_from_its_fat_binaries(tmp_path: Path) -> None:
    (tmp_path / "ops.so").write_bytes(fatbin(80, 90) + fatbin(120))

    assert stack_probe.gpu_archs(str(tmp_path / "ops.so")) == ["sm_80", "sm_90", "sm_120"]


@pytest.mark.parametrize(
    ("archs", "gpu", "runs"),
    [
        (("sm_90",), "sm_90", True),
        (("sm_80",), "sm_86", True),
        (("sm_86",), "sm_80", False),
        (("sm_90", "sm_100"), "sm_120", False),
        (("sm_100",), "sm_103", True),
        (("sm_120",), "sm_121a", True),
    ],
)
def test_machine_code_runs_on_its_own_major_and_a_newer_minor_only(
    archs: tuple[str, ...], gpu: str, runs: bool
) -> None:
    assert covers(archs, gpu) is runs


def test_wheel_tags_of_a_target_are_pips_own_best_first() -> None:
    tags = [str(tag) for tag in target_tags("3.12", "x86_64-manylinux_2_28")]

    assert tags[0] == "cp312-cp312-manylinux_2_28_x86_64"
    assert tags.index("cp312-cp312-manylinux2014_x86_64") < tags.index("cp312-abi3-manylinux_2_28_x86_64")
    assert "cp312-cp312-manylinux_2_34_x86_64" not in tags
    assert tags[-1] == "py30-none-any"


def test_a_system_package_without_version_or_snapshot_is_refused() -> None:
    with pytest.raises((RulesBroken, ValueError), match="neither a version nor a snapshot pins them"):
        SystemPackages(packages=("build-essential",), snapshot=None)
    assert SystemPackages(packages=("curl=7.88.1-10",), snapshot=None).packages


def test_a_file_that_is_no_lock_is_refused_with_the_way_out(tmp_path: Path) -> None:
    root = project(tmp_path, {"engine_version": "0.5.23"})
    assert read_lock(root, "small") is None
    lock_path(root, "small").write_text(json.dumps({"stack": "small"}))

    with pytest.raises(ConfigError, match=r"envs/stacks/small\.lock is not a lock"):
        read_lock(root, "small")


def test_uv_is_asked_for_wheels_only(index: Path, tmp_path: Path) -> None:
    """A source distribution would be built on the machine that locks, and differ on the next one."""
    source = tmp_path / "sglang-0.5.23"
    source.mkdir()
    # Of this version uv believes what is written, and builds nothing to learn it. Source: PEP 643.
    (source / "PKG-INFO").write_text("Metadata-Version: 2.2\nName: sglang\nVersion: 0.5.23\n")
    subprocess.run(("tar", "-czf", index / "sglang-0.5.23.tar.gz", "-C", tmp_path, source.name), check=True)
    without = (Path(sys.executable).parent / "uv", "pip", "compile", "--quiet", "--python", sys.executable, "-")
    subprocess.run(without, input=b"sglang==0.5.23\n", check=True, cwd=tmp_path)

    with pytest.raises(ConfigError, match="does not resolve"):
        resolve(stack(), tmp_path)
