"""Compare an installed environment with a stack lock, from the inside: versions, files, NCCL, flags, kernels.

Standard library only, and one file: it is run by the environment's own Python, on a host or in a container, as
`python -c <this file> <request as JSON>`, and prints one JSON document.
"""

import base64
import csv
import hashlib
import json
import mmap
import os
import re
import subprocess
import sys

_GENERATED = {"INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "RECORD", "RECORD.jws", "RECORD.p7s"}
_FATBIN = b"\x50\xed\x55\xba\x01\x00\x10\x00"
"""Magic, version, header size of a CUDA fat binary. Source: fatbinary_section.h, fatBinaryCtl.h of the CUDA toolkit."""
_CUBIN = 2
_MAX_NAMED = 20
ALLOWED = ("pip", "setuptools", "wheel")
"""Installers that a fresh environment may hold beside what is locked."""


def record_digest(rows):
    """Digest of the rows (path, hash, size) of a RECORD that an installation keeps as they are in the wheel.

    Left out: what installers write themselves, what has no hash, scripts, whose first line an installer changes, and
    bytecode, which an installer makes anew.
    """
    kept = set()
    for row in rows:
        if len(row) < 2 or not row[1]:
            continue
        path = row[0]
        head, _, rest = path.partition("/")
        if head.endswith(".data"):
            kind, _, inner = rest.partition("/")
            if kind not in ("purelib", "platlib"):
                continue
            path = inner
        if path.startswith(("../", "/")):
            continue
        folder, _, name = path.rpartition("/")
        if folder.endswith(".dist-info") and name in _GENERATED:
            continue
        if _is_bytecode(path):
            continue
        kept.add((path, row[1]))
    return hashlib.sha256("".join(f"{path} {digest}\n" for path, digest in sorted(kept)).encode()).hexdigest()


def _is_bytecode(path):
    return "__pycache__/" in path or path.endswith(".pyc")


def gpu_archs(path):
    """GPU architectures that a shared library holds machine code for, as sorted ["sm_90", ...]."""
    found = set()
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return []
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            at = data.find(_FATBIN)
            while at >= 0:
                end = at + 16 + int.from_bytes(data[at + 8 : at + 16], "little")
                entry = at + 16
                while entry + 32 <= min(end, len(data)):
                    kind = int.from_bytes(data[entry : entry + 2], "little")
                    header = int.from_bytes(data[entry + 4 : entry + 8], "little")
                    size = int.from_bytes(data[entry + 8 : entry + 16], "little")
                    if kind == _CUBIN:
                        found.add(int.from_bytes(data[entry + 28 : entry + 32], "little"))
                    if header == 0:
                        break
                    entry += header + size
                at = data.find(_FATBIN, at + 16)
    return [f"sm_{number}" for number in sorted(found) if 20 <= number < 1000]


def normal(name):
    """A package's name as locks spell it. Source: PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed(folders):
    """{name: {version, site, rows}} of every distribution in `folders`; a folder earlier in the list wins."""
    found = {}
    for site in folders:
        for entry in sorted(os.listdir(site)) if os.path.isdir(site) else ():
            if not entry.endswith(".dist-info"):
                continue
            folder = os.path.join(site, entry)
            name, version = _named(folder, entry)
            if normal(name) in found:
                continue
            found[normal(name)] = {"version": version, "site": site, "rows": _rows(os.path.join(folder, "RECORD"))}
    return found


def _named(folder, entry):
    name, _, version = entry[: -len(".dist-info")].partition("-")
    try:
        with open(os.path.join(folder, "METADATA"), encoding="utf-8", errors="replace") as file:
            for line in file:
                if not line.strip():
                    break
                key, _, value = line.partition(":")
                if key == "Name":
                    name = value.strip()
                elif key == "Version":
                    version = value.strip()
    except OSError:
        pass
    return name, version


def _rows(path):
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return list(csv.reader(file))
    except OSError:
        return None


def packages(wanted, patched, folders, deep):
    """Problems of what is installed against `wanted` [{name, version, record}]; `patched` is {path: sha256}.

    deep: read every file and compare it with its hash; else only what RECORD says.
    """
    here = installed(folders)
    problems = []
    files = 0
    claims = _claims(here) if deep else {}
    for package in wanted:
        found = here.get(package["name"])
        if found is None:
            problems.append(f"{package['name']}: not installed, {package['version']} is locked")
            continue
        if found["version"] != package["version"]:
            problems.append(f"{package['name']}: {found['version']} is installed, {package['version']} is locked")
            continue
        if found["rows"] is None:
            problems.append(f"{package['name']}: has no RECORD, so its files cannot be compared")
            continue
        if package.get("record") and record_digest(found["rows"]) != package["record"]:
            problems.append(
                f"{package['name']}: {found['version']} as locked by name, but another build of it: "
                "its list of files is not the locked wheel's"
            )
            continue
        if deep:
            count, changed = _changed(found, patched, claims)
            files += count
            problems += [f"{package['name']}: {text}" for text in changed[:_MAX_NAMED]]
            if len(changed) > _MAX_NAMED:
                problems.append(f"{package['name']}: and {len(changed) - _MAX_NAMED} more files")
    names = {package["name"] for package in wanted}
    problems += [
        f"{name}: {found['version']} is installed, but not locked"
        for name, found in sorted(here.items())
        if name not in names and name not in ALLOWED
    ]
    return {"problems": problems, "installed": len(here), "files": files}


def _claims(here):
    """{(site, path): {hashes}}: some wheels install a file of the same name, and the last one wins."""
    found: "dict[tuple[str, str], set[str]]" = {}
    for distribution in here.values():
        for row in distribution["rows"] or ():
            if len(row) >= 2 and row[1]:
                found.setdefault((distribution["site"], row[0]), set()).add(row[1])
    return found


def _changed(found, patched, claims):
    problems = []
    count = 0
    for row in found["rows"]:
        if len(row) < 2 or not row[1].startswith("sha256=") or row[0].startswith(("../", "/")):
            continue
        if row[0].endswith(".dist-info/direct_url.json") or _is_bytecode(row[0]):
            continue
        path = os.path.join(found["site"], row[0])
        count += 1
        digest = _digest(path)
        if digest is None:
            problems.append(f"{row[0]} is missing")
        elif row[0] in patched:
            if digest.hex() != patched[row[0]]:
                problems.append(f"{row[0]} is not the file that the stack's patches make")
        elif digest not in {_unpadded(claim[7:]) for claim in claims[(found["site"], row[0])]}:
            problems.append(f"{row[0]} was changed after it was installed")
    return count, problems


def _digest(path):
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                digest.update(block)
    except OSError:
        return None
    return digest.digest()


def _unpadded(text):
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


_NCCL = """
import json, torch
from ctypes import CDLL, c_int, byref
seen = torch.cuda.nccl.version() if hasattr(torch.cuda, "nccl") and torch.version.cuda else None
loaded = [line.split()[-1] for line in open("/proc/self/maps") if "libnccl" in line]
number = c_int(0)
if loaded:
    CDLL(sorted(set(loaded))[0]).ncclGetVersion(byref(number))
text = f"{number.value // 10000}.{number.value % 10000 // 100}.{number.value % 100}" if number.value else None
archs = torch._C._cuda_getArchFlags() if torch.version.cuda else None
print("OPS" + json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda, "built": list(seen) if seen else None,
    "nccl": text, "file": sorted(set(loaded))[:1], "archs": archs}))
"""
"""Which NCCL does torch really load? Source: nccl.h, ncclGetVersion: major*10000 + minor*100 + patch since 2.9."""


def nccl(timeout_s):
    """{torch, cuda, nccl, file, archs} as torch itself sees them, or {problem}."""
    return _answer([sys.executable, "-c", _NCCL], timeout_s)


_FLAGS = """
import json, sys
from sglang.srt.server_args import prepare_server_args
prepare_server_args(sys.argv[1:])
print("OPS" + json.dumps({"parsed": len(sys.argv) - 1}))
"""
"""Source: SGLang 0.5.23 srt/server_args.py, prepare_server_args: parses, resolves nothing, opens no model."""


def flags(argv, timeout_s):
    """{parsed: words} when the engine's own parser takes `argv`, else {problem: what it printed}."""
    return _answer([sys.executable, "-c", _FLAGS, *argv], timeout_s)


def _answer(command, timeout_s):
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"problem": f"no answer within {timeout_s:.0f} s"}
    for line in done.stdout.splitlines():
        if line.startswith("OPS"):
            return json.loads(line[3:])
    lines = [line for line in (done.stderr or done.stdout).strip().splitlines() if line.strip()]
    return {"problem": (lines[-1] if lines else "no output")[-400:] + f" (exit {done.returncode})"}


def kernels(names, folders):
    """{package: [archs]} of the shared libraries of each package."""
    here = installed(folders)
    found = {}
    for name in names:
        archs = set()
        for row in (here.get(name) or {}).get("rows") or ():
            path = os.path.join(here[name]["site"], row[0])
            if ".so" in os.path.basename(row[0]) and os.path.isfile(path):
                archs.update(gpu_archs(path))
        found[name] = sorted(archs, key=lambda arch: int(arch[3:]))
    return found


def from_lock(path, sha256):
    """{packages, patched} of a lock file. Raises: ValueError when it is another lock, OSError when there is none."""
    with open(path, "rb") as file:
        content = file.read()
    seen = hashlib.sha256(content).hexdigest()
    if seen != sha256:
        raise ValueError(f"it was made of lock {seen[:12]}, the release of {sha256[:12]}")
    lock = json.loads(content)
    patched = {}
    for patch in lock["patches"]:
        patched.update(patch["result"])
    return {"packages": lock["packages"], "patched": patched}


def site_folders():
    """Where this Python looks for packages."""
    import sysconfig

    return list(dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]))


def probe(request):
    """Answer a request {packages, patched, deep, argv, kernels, nccl}; see the functions above for the answers.

    With {lock_file, lock_sha256} the packages are those of the lock that lies in the environment, when it is that lock.
    """
    folders = site_folders()
    if "lock_file" in request:
        try:
            request = {**request, **from_lock(request["lock_file"], request["lock_sha256"])}
        except (OSError, ValueError) as error:
            return {"problem": str(error)}
    timeout_s = request.get("timeout_s", 300)
    answer = {
        "python": "%d.%d" % sys.version_info[:2],
        "prefix": sys.prefix,
        "packages": packages(request["packages"], request.get("patched", {}), folders, request["deep"]),
    }
    if request.get("kernels"):
        answer["kernels"] = kernels(request["kernels"], folders)
    if request.get("nccl"):
        answer["nccl"] = nccl(timeout_s)
    if request.get("argv"):
        answer["flags"] = flags(request["argv"], timeout_s)
    return answer


def main(argv):
    print(json.dumps(probe(json.loads(argv[0]))))


if __name__ == "__main__":
    main(sys.argv[1:])
