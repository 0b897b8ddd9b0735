# Documentation of the action plugin of the same name, which runs on the controller; nothing is copied to hosts.

DOCUMENTATION = r"""
module: ops_revert
short_description: Put hosts back on the release they had before a roll
description:
  - Goes back host by host, each through the gate, as C(ops rollback --to) does, and asks for the budget before each.
    A host that has no earlier release, or for which the budget is spent, stays as it is and is named. Meant for
    C(run_once).
  - Skipped in check mode, because a roll that touches nothing has nothing to put back.
options:
  hosts:
    description: The hosts to put back, with C(host) and C(release).
    type: list
    elements: dict
    required: true
  fleet:
    description: Every host of the fleet, for the budget.
    type: list
    elements: str
    required: true
  max_unavailable:
    description: Hosts out of traffic at one moment.
    type: int
    required: true
author:
  - ops (@ops)
"""

EXAMPLES = r"""
- name: Put back what this roll switched
  ops_revert:
    hosts:
      - host: gpu-01
        release: baseline-0123456789ab
    fleet: "{{ groups['gpu'] }}"
    max_unavailable: 1
  run_once: true
"""

RETURN = r"""
msg:
  description: What became of each host.
  returned: always
  type: str
"""
