"""A stand-in for ``nvidia-smi`` on a sandbox host: ``nvidia_smi.py SIMULATION [nvidia-smi's own arguments]``.

Answers the forms that are used in the field with the real tool's words and exit status; runs under ``python -I -S``.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpu import Gpu, gpu_settings, read_gpus  # type: ignore[import-not-found,unused-ignore]

INVALID = 2
NO_DEVICES = 6
Column = tuple[str, Callable[[Gpu], str], str]


def main(argv: list[str]) -> int:
    simulation, arguments = Path(argv[0]), argv[1:]
    settings = gpu_settings(simulation)
    gpus = read_gpus(simulation)
    if not gpus:
        print("No devices were found")
        return NO_DEVICES
    if arguments[:1] == ["topo"]:
        return topology(arguments[1:], gpus, str(settings["topology"]))
    options, bad = parse(arguments)
    if bad is not None:
        print(f"Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n({bad})")
        return INVALID
    chosen = select(gpus, options.get("id"))
    if chosen is None:
        print(f"No devices were found matching {options['id']!r}")
        return NO_DEVICES
    if "list" in options:
        for gpu in chosen:
            print(f"GPU {gpu.index}: {gpu.name} (UUID: {gpu.uuid})")
        return 0
    if "query-gpu" in options:
        return query_gpu(options, chosen, settings)
    if "query-compute-apps" in options:
        return query_apps(options, chosen)
    table(chosen, settings)
    return 0


def parse(arguments: list[str]) -> tuple[dict[str, str], str | None]:
    """Return the options by long name, or the argument that cannot be used."""
    options: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word in ("-L", "--list-gpus"):
            options["list"] = ""
        elif word.startswith(("--query-gpu=", "--query-compute-apps=", "--format=", "--id=")):
            name, _, value = word[2:].partition("=")
            options[name] = value
        elif word == "-i" and rest:
            options["id"] = rest.pop(0)
        elif word == "--format" and rest:
            options["format"] = rest.pop(0)
        else:
            return options, word
    return options, None


def select(gpus: list[Gpu], wanted: str | None) -> list[Gpu] | None:
    if wanted is None:
        return gpus
    names = wanted.split(",")
    chosen = [gpu for gpu in gpus if str(gpu.index) in names or gpu.uuid in names or gpu.bus_id in names]
    return chosen or None


def gpu_columns(settings: dict[str, object], gpus: list[Gpu]) -> dict[str, Column]:
    """Return field -> (title, value, unit)."""
    return {
        "timestamp": ("timestamp", lambda gpu: time.strftime("%Y/%m/%d %H:%M:%S.000"), ""),
        "count": ("count", lambda gpu: str(len(gpus)), ""),
        "index": ("index", lambda gpu: str(gpu.index), ""),
        "uuid": ("uuid", lambda gpu: gpu.uuid, ""),
        "gpu_uuid": ("uuid", lambda gpu: gpu.uuid, ""),
        "name": ("name", lambda gpu: gpu.name, ""),
        "gpu_name": ("name", lambda gpu: gpu.name, ""),
        "memory.total": ("memory.total", lambda gpu: str(gpu.total_mib), "MiB"),
        "memory.used": ("memory.used", lambda gpu: str(gpu.used_mib), "MiB"),
        "memory.free": ("memory.free", lambda gpu: str(gpu.total_mib - gpu.used_mib), "MiB"),
        "driver_version": ("driver_version", lambda gpu: str(settings["driver"]), ""),
        "compute_cap": ("compute_cap", lambda gpu: str(settings["compute_cap"]), ""),
        "utilization.gpu": ("utilization.gpu", lambda gpu: str(settings["utilization"]), "%"),
        "power.draw": ("power.draw", lambda gpu: f"{settings['power']:.2f}", "W"),
        "temperature.gpu": ("temperature.gpu", lambda gpu: str(settings["temperature"]), ""),
        "pci.bus_id": ("pci.bus_id", lambda gpu: gpu.bus_id, ""),
        "persistence_mode": ("persistence_mode", lambda gpu: "Enabled", ""),
        "pstate": ("pstate", lambda gpu: "P8", ""),
    }


def query_gpu(options: dict[str, str], gpus: list[Gpu], settings: dict[str, object]) -> int:
    columns = gpu_columns(settings, gpus)
    chosen = pick(options["query-gpu"], columns)
    if chosen is None:
        return INVALID
    rows = [[(value(gpu), unit) for _, value, unit in chosen] for gpu in gpus]
    return write_csv(options.get("format", ""), [(title, unit) for title, _, unit in chosen], rows)


def query_apps(options: dict[str, str], gpus: list[Gpu]) -> int:
    titles = {
        "gpu_uuid": ("gpu_uuid", ""),
        "gpu_name": ("gpu_name", ""),
        "gpu_bus_id": ("gpu_bus_id", ""),
        "pid": ("pid", ""),
        "process_name": ("process_name", ""),
        "name": ("process_name", ""),
        "used_memory": ("used_gpu_memory", "MiB"),
        "used_gpu_memory": ("used_gpu_memory", "MiB"),
    }
    chosen = pick(options["query-compute-apps"], titles)
    if chosen is None:
        return INVALID
    rows: list[list[tuple[str, str]]] = []
    for gpu in gpus:
        for holder in gpu.holders:
            values = {
                "gpu_uuid": gpu.uuid,
                "gpu_name": gpu.name,
                "gpu_bus_id": gpu.bus_id,
                "pid": str(holder.pid),
                "process_name": holder.process_name,
                "used_gpu_memory": str(holder.mib),
            }
            rows.append([(values[title], unit) for title, unit in chosen])
    return write_csv(options.get("format", ""), chosen, rows)


def pick(fields: str, known: dict[str, Any]) -> list[Any] | None:
    """Return the columns for a comma-separated list of fields; None, with the real error text, for an unknown one."""
    chosen = []
    for field in fields.split(","):
        column = known.get(field.strip())
        if column is None:
            print(f'Field "{field.strip()}" is not a valid field to query.\n')
            return None
        chosen.append(column)
    return chosen


def write_csv(form: str, titles: list[tuple[str, str]], rows: list[list[tuple[str, str]]]) -> int:
    words = form.split(",")
    if "csv" not in words:
        print('"--format=" switch is missing. "csv" is the only supported format.')
        return INVALID
    if "noheader" not in words:
        print(", ".join(f"{title} [{unit}]" if unit else title for title, unit in titles))
    for row in rows:
        plain = "nounits" in words
        print(", ".join(value if plain or not unit else f"{value} {unit}" for value, unit in row))
    return 0


def topology(arguments: list[str], gpus: list[Gpu], kind: str) -> int:
    """Print the matrix of ``topo -m``: on PCIe one NUMA node holds the first half of the GPUs."""
    if arguments not in (["-m"], ["--matrix"]):
        print("Invalid combination of input arguments. Please run 'nvidia-smi topo -h' for help.")
        return INVALID
    half = max(1, (len(gpus) + 1) // 2)
    names = [f"GPU{gpu.index}" for gpu in gpus]
    print("\t" + "\t".join(names) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID")
    for row in range(len(gpus)):
        cells = [link(row, column, half, kind) for column in range(len(gpus))]
        node = row // half
        print(f"{names[row]}\t" + "\t".join(cells) + f"\t{node * 64}-{node * 64 + 63}\t{node}\t\tN/A")
    print(
        "\nLegend:\n\n  X    = Self\n"
        "  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)\n"
        "  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node\n"
        "  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)\n"
        "  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)\n"
        "  PIX  = Connection traversing at most a single PCIe bridge\n"
        "  NV#  = Connection traversing a bonded set of # NVLinks"
    )
    return 0


def link(row: int, column: int, half: int, kind: str) -> str:
    if row == column:
        return " X "
    if kind == "nvlink":
        return "NV18"
    return "NODE" if row // half == column // half else "SYS"


def table(gpus: list[Gpu], settings: dict[str, object]) -> None:
    line = "+" + "-" * 89 + "+"
    print(time.strftime("%a %b %e %H:%M:%S %Y"))
    print(line)
    driver = settings["driver"]
    title = f"| NVIDIA-SMI {driver:<23}Driver Version: {driver:<14} CUDA Version: {settings['cuda']}"
    print(f"{title:<90}|")
    print("|-----------------------------------------+------------------------+----------------------+")
    print("| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |")
    print("| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |")
    print("|                                         |                        |               MIG M. |")
    print("|=========================================+========================+======================|")
    for gpu in gpus:
        memory = f"{gpu.used_mib}MiB / {gpu.total_mib:>6}MiB"
        power = f"{settings['power']:.0f}W /  600W"
        print(f"| {gpu.index:>3}  {gpu.name[:24]:<24}    On  | {gpu.bus_id:<16} Off |                    0 |")
        left = f"| N/A   {settings['temperature']}C    P8    {power:>18}"
        print(f"{left} | {memory:>22} | {settings['utilization']:>6}%      Default |")
        print("|                                         |                        |             Disabled |")
        print("+-----------------------------------------+------------------------+----------------------+")
    print()
    print(line)
    print(f"{'| Processes:':<90}|")
    print(f"{'|  GPU   GI   CI              PID   Type   Process name                        GPU Memory':<90}|")
    print(f"{'|        ID   ID                                                               Usage':<90}|")
    print("|" + "=" * 89 + "|")
    holders = [(gpu.index, holder) for gpu in gpus for holder in gpu.holders]
    for index, holder in holders:
        row = f"|  {index:>3}   N/A  N/A {holder.pid:>16}      C   {holder.process_name[:34]:<34} {holder.mib:>8}MiB"
        print(f"{row:<90}|")
    if not holders:
        print(f"{'|  No running processes found':<90}|")
    print(line)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
