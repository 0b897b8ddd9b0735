"""SSH to hosts (fabric, only here) and the agent session that runs over it."""
