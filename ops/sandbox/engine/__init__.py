"""A simulated SGLang server: what it claims to be, its faults, and how it is put into an environment."""
