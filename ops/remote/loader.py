"""Turn the `ops.remote` sources into one line of text that a bare Python on a host can run."""

import base64
import importlib.resources
import json
import zlib
from functools import cache

# Runs on the host before anything else. The bundle's first line is read unbuffered from the same stdin that later
# carries the requests, so nothing of them may be swallowed here.
BOOT = (
    "import sys,zlib,base64;exec(compile(zlib.decompress(base64.b64decode(sys.stdin.buffer.readline())),'ops','exec'))"
)

_IMPORTER = """
import importlib.abc, importlib.util, sys
SOURCES = {sources!r}
class Bundle(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    def find_spec(self, name, path=None, target=None):
        if name in SOURCES:
            return importlib.util.spec_from_loader(name, self, is_package=name in ("ops", "ops.remote"))
    def get_source(self, name):
        return SOURCES[name]
sys.meta_path.insert(0, Bundle())
from ops.remote.agent import main
main()
"""


@cache
def bundle() -> bytes:
    """One base64 line: the compressed importer with every module of `ops.remote` in it."""
    sources = {"ops": ""}
    for entry in sorted(importlib.resources.files("ops.remote").iterdir(), key=lambda e: e.name):
        if entry.name.endswith(".py") and entry.name != "loader.py":
            name = "ops.remote" if entry.name == "__init__.py" else f"ops.remote.{entry.name[:-3]}"
            sources[name] = entry.read_text(encoding="utf-8")
    program = _IMPORTER.format(sources=json.loads(json.dumps(sources)))
    return base64.b64encode(zlib.compress(program.encode(), 9)) + b"\n"
