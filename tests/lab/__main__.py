"""`python -m tests.lab up|down|status`: prepare this machine for lab tests, clean it, say what is there.

Exit codes: 0 done, 1 something failed, 3 the lab cannot run on this machine (one line says why).
"""

import argparse
import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from . import fleet, hosts, images, machine, vm

UNAVAILABLE = 3


def up() -> int:
    """Install packages, start Docker and build every image, so that tests only start hosts."""
    began = time.monotonic()
    machine.prepare()
    _say("packages and Docker", began)
    with ThreadPoolExecutor(max_workers=2) as pool:
        # The disk of the machine and the Docker image share a parent and nothing after it.
        built = [pool.submit(_timed, name, build) for name, build in _builds().items()]
        for future in built:
            future.result()
    _say("lab ready", began)
    return 0


def _builds() -> dict[str, Callable[[], object]]:
    return {
        "virtual machine disk": vm.ensure_disk,
        "host without systemd": lambda: images.ensure_image("supervisord"),
        "fleet root": fleet.ensure_root,
        "host with Docker": lambda: images.ensure_image("docker"),
    }


def _timed(name: str, build: Callable[[], object]) -> None:
    began = time.monotonic()
    build()
    _say(name, began)


def down(*, with_images: bool) -> int:
    """Remove all that the lab made here; images stay (they cost a minute to build) unless `with_images`."""
    _require_rights()
    print(f"virtual machines: {vm.stop_all()} stopped, fleet hosts: {fleet.stop_all()} stopped")
    if machine.docker_answers():
        print(f"hosts: {len(hosts.remove_all())} removed")
        if with_images:
            tags = images.lab_images()
            if tags:
                machine.docker("rmi", "--force", *tags, timeout_s=120)
            print(f"images: {len(tags)} removed")
        print(machine.stop_docker())
    if with_images:
        shutil.rmtree(machine.LAB_FOLDER, ignore_errors=True)
    return 0


def status() -> int:
    """Say what of the lab exists."""
    _require_rights()
    if not machine.docker_answers():
        print("Docker: not running (`python -m tests.lab up` starts it)")
        return 0
    have = set(images.lab_images())
    for name in images.RECIPES:
        tag = images.image_tag(name)
        print(f"image {tag}: {'ready' if tag in have else 'not built'}")
    for name in hosts.Lab().names():
        print(f"host {name}")
    return 0


def _require_rights() -> None:
    why = machine.missing_rights()
    if why:
        raise machine.Unavailable(why)


def _say(what: str, began: float) -> None:
    print(f"lab: {what}: {time.monotonic() - began:.1f} s", flush=True)


def main(argv: list[str]) -> int:
    """Run one command."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description=__doc__)
    parser.add_argument("command", choices=("up", "down", "status"))
    parser.add_argument("--images", action="store_true", help="down: remove images, disks and caches as well")
    arguments = parser.parse_args(argv)
    try:
        if arguments.command == "up":
            return up()
        return down(with_images=arguments.images) if arguments.command == "down" else status()
    except machine.Unavailable as error:
        print(f"lab: unavailable: {error}", file=sys.stderr)
        return UNAVAILABLE
    except machine.CommandFailed as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
