# Documentation of the action plugin of the same name, which runs on the controller; nothing is copied to hosts.

DOCUMENTATION = r"""
module: ops_release
short_description: What an SGLang host serves, as a transaction
description:
  - Deploys a profile, goes back to a good release, or stops serving, on the host of the task. It is the same
    transaction as C(ops deploy), C(ops rollback) and C(ops stop), with the same preflight, gate, journal, lock and
    guard.
  - A failure leaves the host on the release that served before, proven, or says loudly that it does not.
  - Runs on the controller and reaches the host by the inventory's C(ansible_*) and C(ops_*) variables; the controller's
    Python needs C(ops).
  - In check mode nothing is touched; the diff shows the rendered files and links against the host's, secrets masked.
  - Values of the profile's C(secrets) come from the variable C(ops_secrets) (a map; keep it in Ansible Vault), else
    from the environment or C(.env) of the project. They are no option, so that no callback can show them.
options:
  state:
    description:
      - V(present) deploys I(profile); nothing changes where exactly it serves already.
      - V(good) makes an earlier good release serve, see I(release).
      - V(absent) drains and stops, also over boots. Releases and the journal stay on the host.
    type: str
    choices: [present, good, absent]
    default: present
  profile:
    description: Name of a profile in C(envs/profiles). Needed with O(state=present).
    type: str
  release:
    description:
      - For O(state=good), a release id, V(baseline), or V(previous) (the last good one other than the current).
      - Left out, the last good one; nothing changes where it serves already.
    type: str
  digest:
    description:
      - What I(profile) resolved to when the roll began (filter C(ops_digest)). Refused when the files say something
        else by now, so that all hosts of a roll get the same.
    type: str
  message:
    description: Why; shown to whoever finds the lock.
    type: str
    default: ""
  assume_baseline:
    description: A C(baseline.json) to judge speed against, instead of the host's own measurement.
    type: path
  break_lock:
    description: Undo what a dead run left pending now, instead of waiting for the host's guard.
    type: bool
    default: false
  lock_wait_s:
    description:
      - Seconds to wait while another run has the host. Left out, as long as the host's guard would let that run go on.
    type: float
author:
  - ops (@ops)
"""

EXAMPLES = r"""
- name: Serve the profile, proved on each host
  ops_release:
    profile: eagle3-2step

- name: Back to the non-speculative baseline
  ops_release:
    state: good
    release: baseline

- name: Stop serving
  ops_release:
    state: absent
"""

RETURN = r"""
outcome:
  description: deployed, unchanged, planned, rolled-back, stopped, refused, unsafe, interrupted.
  returned: always
  type: str
exit_code:
  description: What C(ops) would exit with for this host.
  returned: always
  type: int
release:
  description: The release that serves.
  returned: always
  type: str
previous:
  description: What was current before.
  returned: always
  type: str
verdict:
  description: The gate's verdict, pass, fail or inconclusive.
  returned: when the gate was asked
  type: str
checks:
  description: Every check's outcome and evidence.
  returned: when the gate was asked
  type: list
  elements: dict
phases:
  description: Seconds of each step, in the engine's time.
  returned: always
  type: dict
"""
