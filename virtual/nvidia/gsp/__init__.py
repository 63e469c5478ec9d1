"""NVIDIA cards at register level: power-on, falcons, the GSP's boot, and its RPC server over the
resource manager of `virtual.nvidia.rm`. The engines behind are `virtual.nvidia.chip`'s: one chip,
two front doors (the stock driver's ioctls, and these registers)."""
