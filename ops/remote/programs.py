"""What supervisord will really do with this instance's programs: its configuration files against ours."""

import configparser
import glob
import os


def inspect(rpc, conf, instance_dir, engine, guard):
    """As `systemd.Supervisor.inspect`; `overrides` are other configuration files that define the same program, or that
    give every program an environment."""
    parser = _parsed(conf)
    here = os.path.dirname(os.path.abspath(conf))
    patterns = parser.get("include", "files", fallback="").replace("%(here)s", here).split()
    included = [path for pattern in patterns for path in glob.glob(os.path.join(here, pattern))]
    seen = {os.path.realpath(path) for path in included}
    added, changed, _ = rpc.reloadConfig()[0]
    loaded = {entry["group"] for entry in rpc.getAllProcessInfo()}
    found = []
    for program, folder in ((engine, "current"), (guard, "guard")):
        path = os.path.join(instance_dir, folder, "supervisor.conf")
        read = os.path.realpath(path) in seen
        problem = "" if program in loaded else "supervisord does not know the program"
        if not read:
            problem = f"{conf} includes no file {path}"
        found.append(
            {
                "unit": program,
                "installed": path,
                "wanted": path,
                "same": read and os.path.isfile(path),
                "enabled": read and program in loaded and (program != guard or _autostart(path, program)),
                "overrides": _overrides(conf, parser, included, path, program),
                "stale": program in changed or program in added,
                "problem": problem,
            }
        )
    return found


def _parsed(path):
    parser = configparser.RawConfigParser(inline_comment_prefixes=(" ;",), strict=False)
    parser.read(path)
    return parser


def _autostart(path, program):
    return _parsed(path).get(f"program:{program}", "autostart", fallback="true").strip().lower() in ("true", "yes", "1")


def _overrides(conf, parser, included, own, program):
    section = f"program:{program}"
    others = [p for p in included if os.path.realpath(p) != os.path.realpath(own) and section in _parsed(p)]
    if section in parser or parser.get("supervisord", "environment", fallback=""):
        others.append(conf)
    return sorted(set(others))
