"""Make an environment from a lock on the host, in a folder of its own; a broken-off run goes on where it stopped.

Invariant: a folder with `ops-complete.json` holds exactly what its `stack.lock` says and was proven; it is never
changed again. One without it is half made, and nothing starts from it.
"""

import base64
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import time
from contextlib import contextmanager

from ops.remote import durable
from ops.remote.refusal import VerbError

COMPLETE = "ops-complete.json"
_WHEELS = ".wheels"
_AT_ONCE = 8
_SHORT_S = 120.0
_POLL_S = 0.5


def state(emit, *, folder):
    """{complete, wheels: [files that are there, whole]} of an environment's folder."""
    wheels = os.path.join(folder, _WHEELS)
    names = sorted(os.listdir(wheels)) if os.path.isdir(wheels) else []
    return {"complete": os.path.exists(os.path.join(folder, COMPLETE)), "wheels": names}


def put(emit, *, folder, name, content, sha256):
    """Put a file of the stack itself (a wheel, a patch) beside the environment."""
    data = base64.b64decode(content)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise VerbError(f"{name} arrived with other contents than were sent", code="arrived-changed")
    place = os.path.join(folder, _WHEELS)
    os.makedirs(place, mode=0o755, exist_ok=True)
    durable.write_atomic(os.path.join(place, name), data)
    return {}


def install(emit, *, folder, lock, lock_sha256, python, patches, timeout_s):
    """Make the environment. Args: lock: the lock's text. python: major.minor. patches: names that `put` brought.

    Returns {changed, downloaded, python}. Raises: VerbError with pip's own words.
    """
    if os.path.exists(os.path.join(folder, COMPLETE)):
        return {"changed": False, "downloaded": 0, "python": os.path.join(folder, "bin", "python")}
    if hashlib.sha256(lock.encode()).hexdigest() != lock_sha256:
        raise VerbError("the lock arrived with other contents than were sent", code="arrived-changed")
    packages = json.loads(lock)["packages"]
    deadline = time.monotonic() + timeout_s
    os.makedirs(os.path.join(folder, _WHEELS), mode=0o755, exist_ok=True)
    with _alone(emit, folder, deadline) as held:
        if os.path.exists(os.path.join(folder, COMPLETE)):  # by whom we waited for
            return {"changed": False, "downloaded": 0, "python": os.path.join(folder, "bin", "python")}
        interpreter = _environment(emit, folder, python, held)
        downloaded = _download(emit, folder, interpreter, packages, held, deadline)
        _install(emit, folder, interpreter, packages, held, deadline)
        _patch(folder, interpreter, patches, held)
        durable.write_atomic(os.path.join(folder, "stack.lock"), lock.encode())
    return {"changed": True, "downloaded": downloaded, "python": interpreter}


def complete(emit, *, folder, proof):
    """The environment was proven: from now on it is whole. What was only needed to make it goes."""
    shutil.rmtree(os.path.join(folder, _WHEELS), ignore_errors=True)
    durable.write_atomic(os.path.join(folder, COMPLETE), json.dumps({"at": time.time(), **proof}, indent=1).encode())
    return {}


@contextmanager
def _alone(emit, folder, deadline):
    """Be the only one who writes into the environment. Yields the lock, for the programs that write: they outlive an
    agent whose SSH broke, and the repeated call waits for them."""
    fd = os.open(os.path.join(folder, ".installing"), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        told = False
        while not _locked(fd):
            if time.monotonic() > deadline:
                raise VerbError(f"another run is still installing into {folder}", code="unfinished-install")
            if not told:
                emit({"say": f"waiting: another run is installing into {folder}"})
                told = True
            time.sleep(_POLL_S)
        yield fd
    finally:
        os.close(fd)


def _locked(fd):
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _environment(emit, folder, version, held):
    interpreter = os.path.join(folder, "bin", "python")
    if _version(interpreter) == version and _pip_works(interpreter):
        return interpreter
    program = shutil.which(f"python{version}")
    if program is None and _version("python3") == version:
        program = shutil.which("python3")
    if program is None:
        raise VerbError(
            f"there is no python{version} on this host (PATH {os.environ.get('PATH', '')})", code="python-missing"
        )
    emit({"say": f"making {folder} with {program}"})
    _run([program, "-m", "venv", "--clear", "--without-pip", folder + ".new"], held)
    # `venv --clear` would take the wheels that are here already, so it is made beside and moved in.
    for name in os.listdir(folder + ".new"):
        target = os.path.join(folder, name)
        if os.path.isdir(target) and not os.path.islink(target):
            shutil.rmtree(target)
        elif os.path.lexists(target):
            os.unlink(target)
        os.rename(os.path.join(folder + ".new", name), target)
    os.rmdir(folder + ".new")
    _run([interpreter, "-m", "ensurepip", "--default-pip"], held)
    return interpreter


def _version(program):
    try:
        done = subprocess.run(
            [program, "-I", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _pip_works(interpreter):
    done = subprocess.run([interpreter, "-I", "-m", "pip", "--version"], capture_output=True, timeout=60, check=False)
    return done.returncode == 0


def _run(words, held, timeout_s=_SHORT_S):
    """Run a program that writes into the environment; it holds the lock `held` as long as it lives."""
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=max(1.0, timeout_s),
            check=False,
            stdin=subprocess.DEVNULL,
            pass_fds=(held,),
        )
    except subprocess.TimeoutExpired:
        raise VerbError(f"`{' '.join(words[:4])}` did not end in time", code="command-timeout") from None
    if done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise VerbError(f"`{' '.join(words[:4])}` failed: " + " / ".join(lines[-6:])[-1500:], code="command-failed")
    return done.stdout


def _whole(path, package):
    return os.path.isfile(path) and durable.sha256(path) == package["sha256"]


def _download(emit, folder, interpreter, packages, held, deadline):
    """Fetch every wheel that is not here whole, a few at a time, each checked against the lock's digest."""
    place = os.path.join(folder, _WHEELS)
    missing = [p for p in packages if not _whole(os.path.join(place, p["file"]), p)]
    if len(missing) < len(packages):
        emit({"say": f"{len(packages) - len(missing)} of {len(packages)} wheels are here already"})
    for start in range(0, len(missing), _AT_ONCE):
        some = missing[start : start + _AT_ONCE]
        for package in some:
            if os.path.exists(os.path.join(place, package["file"])):
                os.unlink(os.path.join(place, package["file"]))  # half a file of a run that broke off
        listing = os.path.join(place, "some.txt")
        durable.write_atomic(listing, _requirements(some).encode())
        size = sum(p["size"] or 0 for p in some) / 1e6
        names = ", ".join(p["name"] for p in some)
        emit({"say": f"fetching {start + len(some)} of {len(missing)}: {names} ({size:.0f} MB)"})
        words = [interpreter, "-I", "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        words += ["--only-binary", ":all:", "--require-hashes", "--dest", place, "--requirement", listing]
        _run(words, held, deadline - time.monotonic())
    for package in missing:
        if not _whole(os.path.join(place, package["file"]), package):
            raise VerbError(f"{package['file']} did not arrive as it is locked", code="arrived-changed")
    return len(missing)


def _requirements(packages):
    return "".join(f"{p['name']}=={p['version']} --hash=sha256:{p['sha256']}\n" for p in packages)


def _install(emit, folder, interpreter, packages, held, deadline):
    place = os.path.join(folder, _WHEELS)
    listing = os.path.join(place, "all.txt")
    durable.write_atomic(listing, _requirements(packages).encode())
    emit({"say": f"installing {len(packages)} packages"})
    words = [interpreter, "-I", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    words += ["--no-index", "--find-links", place, "--force-reinstall", "--require-hashes", "--requirement", listing]
    _run(words, held, deadline - time.monotonic())


def _patch(folder, interpreter, patches, held):
    if not patches:
        return
    site = _run([interpreter, "-I", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], held).strip()
    for name in patches:
        path = os.path.join(folder, _WHEELS, name)
        _run(["patch", "-p1", "--batch", "--forward", "--fuzz=0", "--directory", site, "--input", path], held)
