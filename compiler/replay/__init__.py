"""@jit: kernels recorded once and replayed with new inputs."""
