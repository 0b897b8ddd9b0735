# Documentation of the action plugin of the same name, which runs on the controller; nothing is copied to hosts.

DOCUMENTATION = r"""
module: ops_gate
short_description: Judge what runs on an SGLang host
description:
  - Asks the gate's checks of the running engine and keeps the verdict in the host's journal, as C(ops gate) does. Fails
    unless the verdict is pass; inconclusive is not pass.
  - With O(bake_s) it first watches the host that long. It fails at once when the host stops serving, restarts its
    engine or loses its traffic; an accept length below the profile's floor calls the gate early.
  - In check mode it is skipped, because judging loads the engine and writes to the journal.
options:
  subset:
    description: V(deploy) asks every check, V(rollback) those from alive to acceptance.
    type: str
    choices: [deploy, rollback]
    default: rollback
  bake_s:
    description: Seconds to watch first, in the engine's time.
    type: float
    default: 0
author:
  - ops (@ops)
"""

EXAMPLES = r"""
- name: Watch the canary for ten minutes, then judge it
  ops_gate:
    bake_s: 600
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
