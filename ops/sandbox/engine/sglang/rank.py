# Every import costs each of nine processes memory and start time.
# ruff: noqa: PTH103, PTH105, PTH108, PTH111, PTH120, PTH123, SIM105
"""One tensor-parallel rank, or the detokenizer: a process that holds GPU memory and has an environment of its own.

Started by the launcher as ``python -I -S rank.py OPTIONS-AS-JSON``, so it is small and quick. It takes its orders on
stdin, one a line: ``env`` (answer with the NCCL settings it sees), ``mem MIB``, ``fail`` (send SIGQUIT to the launcher,
as a scheduler does after an exception), ``exit``. The end of stdin means that the launcher is gone.
"""

import json
import os
import signal
import sys
import time

CONF_FILES = ("~/.nccl.conf", "/etc/nccl.conf")


def main() -> None:
    options = json.loads(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings = nccl_settings()
    set_title(options["title"], options["setproctitle"])
    folder = options["gpu_folder"]
    gpu_file = f"{folder}/{os.getpid()}.json" if folder else None
    launcher = os.getppid()
    if gpu_file:
        hold(gpu_file, options["title"], 512)
    for order in iter(sys.stdin.readline, ""):
        word, _, argument = order.strip().partition(" ")
        if word == "env":
            print(json.dumps(settings), flush=True)
        elif word == "mem" and gpu_file:
            hold(gpu_file, options["title"], int(argument))
        elif word == "fail":
            os.kill(launcher, signal.SIGQUIT)
        elif word == "exit":
            leave(gpu_file)
    outlive(options["orphan_s"])
    leave(gpu_file)


def nccl_settings() -> dict[str, str]:
    """Return what NCCL would use: the environment, then ~/.nccl.conf, then /etc/nccl.conf for what is not set."""
    settings = {name: value for name, value in os.environ.items() if name.startswith("NCCL_")}
    own = os.environ.get("NCCL_CONF_FILE")
    for file in (own, *CONF_FILES) if own else CONF_FILES:
        try:
            with open(os.path.expanduser(file), encoding="utf-8") as lines:
                pairs = [line.split("#")[0].strip().partition("=") for line in lines]
        except OSError:
            continue
        for name, equals, value in pairs:
            if equals:
                settings.setdefault(name.strip(), value.strip())
    return settings


def set_title(title: str, folder: str) -> None:
    # -I -S keeps the interpreter small and blind to site-packages; this one package is let back in.
    sys.path.append(folder)
    import setproctitle

    setproctitle.setproctitle(title)
    sys.path.remove(folder)


def hold(file: str, title: str, mib: int) -> None:
    """Say that this process holds ``mib`` MiB: the entry counts while this very process lives."""
    with open("/proc/self/stat", encoding="utf-8") as stat:
        start_time = int(stat.read().rpartition(")")[2].split()[19])
    import pwd

    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())
    entry = {"pid": os.getpid(), "starttime": start_time, "mib": mib, "process_name": title, "user": user}
    os.makedirs(os.path.dirname(file), exist_ok=True)
    temporary = f"{file}.{os.getpid()}.tmp"
    with open(temporary, "w", encoding="utf-8") as out:
        json.dump(entry, out)
    os.replace(temporary, file)


def outlive(seconds: float | None) -> None:
    """Go on for a while without the launcher; without a limit when ``seconds`` is None."""
    if seconds is not None:
        time.sleep(seconds)
        return
    while True:
        time.sleep(3600)


def leave(gpu_file: str | None) -> None:
    if gpu_file:
        try:
            os.unlink(gpu_file)
        except FileNotFoundError:
            pass
    os._exit(0)


if __name__ == "__main__":
    main()
