"""The software of a host: images and environments made from a lock, proven from the inside, fetched, removed.

A release names its software in its manifest: {kind: image, id, reference, lock} | {kind: venv, path, lock} |
{kind: python, path}. What was proven lies in `<root>/stacks/proofs/`, keyed by what cannot change under its name: an
image's id, a venv's folder.
"""

import json
import os
import shutil
import subprocess
import time
from typing import Any, cast

from ops.remote import durable, journal, processes, stack_probe, store
from ops.remote.refusal import VerbError

IMAGE_PYTHON = "/opt/sglang/bin/python"
IMAGE_LOCK = "/opt/ops/stack.lock"
NAME_LABEL = "ops.instance-dir"
_INSPECT_S = 60.0
_REMOVE_S = 600.0
"""Docker takes minutes to remove a container while weights are read from the same disk."""


def docker(*words, timeout_s=_INSPECT_S):
    """Run the Docker client. Raises: VerbError when it is not there or does not answer in time."""
    try:
        return subprocess.run(
            ["docker", *words],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        raise VerbError("there is no `docker` on this host (runtime docker needs it)", code="docker-missing") from None
    except subprocess.TimeoutExpired:
        raise VerbError(
            f"`docker {' '.join(words[:2])}` did not answer within {timeout_s:.0f} s", code="docker-timeout"
        ) from None


def _inspect(kind, name):
    """The description of a container or an image, or None when there is none. Raises: VerbError when Docker fails."""
    done = docker(kind, "inspect", name)
    if done.returncode == 0:
        return json.loads(done.stdout)[0]
    if "No such" in done.stderr:
        return None
    raise VerbError(f"Docker does not answer: {done.stderr.strip()[:300]}", code="docker-failed")


def container_name(instance):
    """The one name that a container of an instance has."""
    return f"sglang-{instance}"


def container(name):
    """{id, name, image, running, exit_code, pid, created, instance_dir, release, environ, restart, health}, or None."""
    seen = _inspect("container", name)
    if seen is None:
        return None
    config = seen["Config"]
    labels = config.get("Labels") or {}
    pairs = (entry.partition("=") for entry in config.get("Env") or [])
    return {
        "id": seen["Id"],
        "name": seen["Name"].lstrip("/"),
        "image": seen["Image"],
        "image_name": config.get("Image"),
        "running": seen["State"]["Running"],
        "exit_code": seen["State"]["ExitCode"],
        "pid": seen["State"]["Pid"] or None,
        "created": seen["Created"],
        "instance_dir": labels.get(NAME_LABEL),
        "release": labels.get("ops.release"),
        "environ": {key: value for key, _, value in pairs},
        "restart": seen["HostConfig"]["RestartPolicy"]["Name"] or "no",
    }


def look(instance_dir, instance, wanted):
    """What is there of `wanted` {role: software}: {docker, container, software: {role: {..., present, proof}}}.

    Asks Docker only when some of it is an image.
    """
    found: "dict[str, Any]" = {"container": None, "problem": "", "software": {}}
    root = os.path.dirname(instance_dir)
    if any(software["kind"] == "image" for software in wanted.values()):
        try:
            found["container"] = container(container_name(instance))
        except VerbError as error:
            found["problem"] = str(error)
    for role, software in wanted.items():
        entry = {**software, "present": _present(software, found["problem"]), "proof": _proof(root, key(software))}
        found["software"][role] = entry
    return found


def _present(software, problem):
    if software["kind"] == "image":
        if problem:
            return None
        return _inspect("image", software["id"]) is not None
    if software["kind"] == "venv":
        return os.path.exists(os.path.join(software["path"], "ops-complete.json"))
    return os.access(software["path"], os.X_OK)


def key(software):
    """The name under which a proof of it is kept."""
    if software["kind"] == "image":
        return software["id"].replace(":", "-")
    return (
        os.path.basename(os.path.dirname(software["path"]))
        if software["kind"] == "python"
        else os.path.basename(software["path"])
    )


def _proof(root, name):
    text = durable.read_text(os.path.join(root, "stacks", "proofs", f"{name}.json"))
    return None if text is None else json.loads(text)


def proof(emit, *, instance_dir, software):
    """{"proof": what is kept of it, or None}."""
    return {"proof": _proof(os.path.dirname(instance_dir), key(software))}


def remember(emit, *, instance_dir, software, proof):
    """Keep what was proven: {outcome, lock, verdicts}; `at` is added (epoch seconds)."""
    folder = os.path.join(os.path.dirname(instance_dir), "stacks", "proofs")
    os.makedirs(folder, mode=0o755, exist_ok=True)
    document = {"at": round(time.time(), 3), "software": software, **proof}
    durable.write_atomic(os.path.join(folder, f"{key(software)}.json"), json.dumps(document, indent=1).encode())
    return {}


def prove(emit, *, software, request, timeout_s):
    """Let an image, a running container ({kind: container, name}) or an environment answer `request`.

    Returns the answer of `stack_probe.probe`, or {"problem"} when there is none.
    """
    command = ["-I", "-c", _source(), json.dumps(request)]
    if software["kind"] == "image":
        words = ["docker", "run", "--rm", "--pull", "never", "--network", "none", "--entrypoint", IMAGE_PYTHON]
        words += ["--log-driver", "none", software["id"]]
    elif software["kind"] == "container":
        words = ["docker", "exec", software["name"], IMAGE_PYTHON]
    elif software["kind"] == "venv":
        words = [os.path.join(software["path"], "bin", "python")]
    else:
        words = [software["path"]]
    try:
        done = subprocess.run(
            [*words, *command], capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired:
        return {"problem": f"it did not answer within {timeout_s:.0f} s"}
    except OSError as error:
        return {"problem": str(error)}
    if done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()
        return {"problem": f"exit {done.returncode}: {lines[-1][-400:]}"}
    return json.loads(done.stdout.splitlines()[-1])


def prove_current(emit, *, instance_dir, instance, software, timeout_s, deep=False):
    """Compare what runs now, not what it was started from, with the lock that lies in it. Returns as `prove`.

    A container is asked itself: its files may have been changed after it was created.
    """
    if software["kind"] == "python" or not software.get("lock"):
        return {"unmanaged": True}
    target = software
    if software["kind"] == "image":
        seen = container(container_name(instance))
        if seen is None or not seen["running"]:
            return {"problem": f"container {container_name(instance)} does not run"}
        if seen["image"] != software["id"] and software["id"].startswith("sha256:"):
            return {
                "problem": f"the container runs image {seen['image'][7:19]}, the release names {software['id'][7:19]}"
            }
        if os.path.realpath(seen["instance_dir"] or "/") != os.path.realpath(instance_dir):
            return {"problem": f"container {container_name(instance)} is not this instance's"}
        target = {"kind": "container", "name": seen["id"]}
        if seen["restart"] != "no":
            return {"problem": f"the container has restart policy {seen['restart']}: two keepers would start it"}
    file = IMAGE_LOCK if software["kind"] == "image" else os.path.join(software["path"], "stack.lock")
    request = {"lock_file": file, "lock_sha256": software["lock"], "deep": deep}
    return prove(emit, software=target, request=request, timeout_s=timeout_s)


def _source():
    """The text of `stack_probe`, from wherever this program was loaded."""
    loader = cast("Any", stack_probe.__spec__).loader
    return loader.get_source("ops.remote.stack_probe")


def image(emit, *, image):
    """{present, labels, environ, config} of an image on this host."""
    seen = _inspect("image", image)
    return {"present": seen is not None, "id": seen["Id"] if seen else None, "attrs": seen}


def tag(emit, *, image, name):
    """Give an image a name, so that nobody's clean-up takes it for a leftover."""
    done = docker("tag", image, name)
    if done.returncode != 0:
        raise VerbError(f"image {image[7:19]} could not be called {name}: {done.stderr.strip()}", code="docker-failed")
    return {}


def fetch(emit, *, software, timeout_s):
    """Have the image here: pull it by digest when it is not, and check that what came is what was asked for."""
    if _inspect("image", software["id"]) is not None:
        return {"pulled": False}
    reference = software.get("reference")
    if not reference:
        raise VerbError(
            f"image {software['id'][7:19]} is not on this host, and no registry is known to hold it",
            code="image-missing",
        )
    emit({"say": f"pulling {reference}"})
    process = subprocess.Popen(
        ["docker", "pull", reference],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline = time.monotonic() + timeout_s
    lines = []
    for line in process.stdout or ():
        lines.append(line.strip())
        if "Pull complete" in line or "Digest:" in line or "Status:" in line:
            emit({"say": line.strip()})
        if time.monotonic() > deadline:
            process.kill()
            raise VerbError(f"pulling {reference} did not end within {timeout_s:.0f} s", code="pull-timeout")
    if process.wait() != 0:
        raise VerbError(f"pulling {reference} failed: {lines[-1] if lines else 'no output'}", code="pull-failed")
    seen = _inspect("image", reference)
    if seen is None or seen["Id"] != software["id"]:
        raise VerbError(
            f"{reference} is image {seen['Id'][7:19] if seen else 'unknown'}, the lock's is {software['id'][7:19]}",
            code="wrong-image",
        )
    return {"pulled": True}


def clear_container(instance_dir, instance):
    """Remove what an earlier start left under the instance's name; a container that is not ours is not touched."""
    name = container_name(instance)
    seen = container(name)
    if seen is None:
        return None
    if seen["instance_dir"] is None or os.path.realpath(seen["instance_dir"]) != os.path.realpath(instance_dir):
        return None
    docker("rm", "--force", seen["id"], timeout_s=_REMOVE_S)
    deadline = time.monotonic() + _REMOVE_S
    while container(name) is not None:
        if time.monotonic() > deadline:
            raise VerbError(f"container {name} was not removed within {_REMOVE_S:.0f} s", code="docker-timeout")
        time.sleep(0.2)
    return seen["id"]


def uses(instance_dir):
    """Software that any release of any instance of this host names: {key: software}."""
    found = {}
    root = os.path.dirname(instance_dir)
    for instance in sorted(os.listdir(root)) if os.path.isdir(root) else ():
        releases = os.path.join(root, instance, "releases")
        for release in sorted(os.listdir(releases)) if os.path.isdir(releases) else ():
            text = durable.read_text(os.path.join(releases, release, "manifest.json"))
            software = json.loads(text).get("software") if text else None
            if software and software["kind"] in ("image", "venv"):
                found[key(software)] = software
    return found


def prune(emit, *, instance_dir, keep):
    """As `store.prune`, and remove images and environments that only the removed releases named.

    What another release of the host still names stays, and with it what last good and baseline need.
    Returns {"removed": [releases], "discarded": [names]}.
    """
    before = uses(instance_dir)
    good = [e["release"] for e in journal.tail(instance_dir) if e["event"] in ("committed", "confirmed-late")]
    found = store.prune(emit, instance_dir=instance_dir, keep=keep, good=good)
    after = uses(instance_dir)
    discarded = []
    for name, software in sorted(before.items()):
        if name in after:
            continue
        if software["kind"] == "image":
            done = docker("image", "rm", software["id"], timeout_s=_REMOVE_S)
            if done.returncode != 0 and "No such image" not in done.stderr:
                emit({"say": f"image {name} stays: {done.stderr.strip()[:200]}"})
                continue
        elif any(p for p in processes.all_pids() if _runs_in(p, software["path"])):
            emit({"say": f"{software['path']} stays: a process runs in it"})
            continue
        else:
            shutil.rmtree(software["path"], ignore_errors=True)
        discarded.append(name)
    return {**found, "discarded": discarded}


def _runs_in(pid, folder):
    return processes.title(pid).startswith(folder + "/")
