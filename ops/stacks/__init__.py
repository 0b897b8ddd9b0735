"""Stacks: from what is wanted (`envs/stacks/NAME.yaml`) to every file of it (`NAME.lock`), and what differs."""
