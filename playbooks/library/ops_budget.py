# Documentation of the action plugin of the same name, which runs on the controller; nothing is copied to hosts.

DOCUMENTATION = r"""
module: ops_budget
short_description: Refuse a wave that would take too many hosts out of traffic
description:
  - Reads the status of every host of the fleet and fails when the wave that is about to begin would leave more than
    O(max_unavailable) hosts out of traffic. Unreachable, stopped and held hosts count; a host on which nothing was ever
    deployed does not. Changes nothing. Meant for C(run_once).
options:
  fleet:
    description: Every host of the fleet.
    type: list
    elements: str
    required: true
  wave:
    description: The hosts that are about to be taken out.
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
- name: Keep enough hosts in traffic
  ops_budget:
    fleet: "{{ groups['gpu'] }}"
    wave: "{{ ansible_play_batch }}"
    max_unavailable: 1
  run_once: true
"""

RETURN = r"""
status:
  description: What was counted, in C(out) and C(taking).
  returned: always
  type: dict
"""
