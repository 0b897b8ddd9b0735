# Documentation of the action plugin of the same name, which runs on the controller; nothing is copied to hosts.

DOCUMENTATION = r"""
module: ops_reboot
short_description: Reboot an SGLang host and prove that it came back as it was
description:
  - Drains the host, reboots it, waits for SSH and for the engine, compares release and environment of every rank with
    what served before, asks the gate, and lets traffic in again, as C(ops host reboot --verify) does.
  - Skipped in check mode.
options:
  patience_s:
    description: Seconds until SSH must answer again.
    type: float
    default: 1200
  break_lock:
    description: Undo what a dead run left pending now, instead of waiting for the host's guard.
    type: bool
    default: false
author:
  - ops (@ops)
"""

EXAMPLES = r"""
- name: Reboot and prove what came back
  ops_reboot:
"""

RETURN = r"""
outcome:
  description: rebooted, refused, unsafe.
  returned: always
  type: str
"""
