"""Runtime of translated code: waves, workgroups, and the routines it calls."""
