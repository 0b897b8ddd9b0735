# Documentation of the action plugin of the same name, which runs on the controller; nothing is copied to hosts.

DOCUMENTATION = r"""
module: ops_verify
short_description: Is what was deployed still what is there
description:
  - Compares files, units, environment of every rank, NCCL's configuration and the links with what was deployed, as
    C(ops verify) does. Changes nothing. Fails when something is wanting or cannot be told.
options: {}
author:
  - ops (@ops)
"""

EXAMPLES = r"""
- name: Compare what runs with what was deployed
  ops_verify:
"""

RETURN = r"""
verdict:
  description: pass, fail or inconclusive.
  returned: always
  type: str
checks:
  description: Every check's outcome and evidence.
  returned: always
  type: list
  elements: dict
"""
