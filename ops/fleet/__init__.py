"""Many hosts: order and budget of a roll (pure), what the playbooks' plugins call, and the playbook as a process."""
