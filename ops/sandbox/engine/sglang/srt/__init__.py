"""The real engine's package of the runtime, as far as tools reach into it."""
