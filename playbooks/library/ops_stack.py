# Documentation of the action plugin of the same name, which runs on the controller; nothing is copied to hosts.

DOCUMENTATION = r"""
module: ops_stack
short_description: Install the locked stack of a profile in an environment of its own
description:
  - Makes a virtual environment from the stack's lock in a new folder below C(ops_stacks) of the host, every wheel
    checked by its hash, and proves it from the inside, as C(ops host install) does. What runs is not touched. An
    environment that is there is proven again and reported as unchanged.
  - An install that broke off goes on where it stopped.
options:
  profile:
    description: The profile whose stack is installed, and whose command line the engine's own parser must take.
    type: str
    required: true
author:
  - ops (@ops)
"""

EXAMPLES = r"""
- name: Install what the profile pins
  ops_stack:
    profile: eagle3-2step
"""

RETURN = r"""
outcome:
  description: installed or unchanged.
  returned: always
  type: str
status:
  description: The stack, its folder, and every check's outcome and evidence.
  returned: always
  type: dict
"""
