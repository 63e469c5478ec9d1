"""Runtime of translated kernels: worker contexts, wave states, the launch loop."""
