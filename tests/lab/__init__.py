"""Real Linux hosts to test on: Debian servers with systemd, containers without it, a virtual machine, light fleets.

`Lab` (hosts.py) makes containers, `Vm` (vm.py) a machine with a kernel of its own, `fleet` (fleet.py) many light hosts.
`python -m tests.lab up|down|status` prepares the machine and cleans it. Invariant: everything the lab makes carries
its name prefix `ops-lab` and can be removed by `down`; nothing else is touched.
"""
