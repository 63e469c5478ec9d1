"""The kernel driver KGSL: its calls, contexts and timestamps."""
