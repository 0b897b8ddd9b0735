# Documentation of the action plugin of the same name, which runs on the controller; nothing is copied to hosts.

DOCUMENTATION = r"""
module: ops_status
short_description: Read what an SGLang host serves
description:
  - Reads state, release, admission, environment of the ranks, lock and last verdict from the host, as C(ops status)
    does. Changes nothing. A host that cannot be asked is unreachable.
options: {}
author:
  - ops (@ops)
"""

EXAMPLES = r"""
- name: Read what each host serves
  ops_status:
  register: ops_seen
"""

RETURN = r"""
status:
  description: As in C(ops status --json).
  returned: always
  type: dict
release:
  description: The current release.
  returned: always
  type: str
"""
