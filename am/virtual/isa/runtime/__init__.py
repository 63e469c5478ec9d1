"""What translated code runs on: waves, workgroups, and the routines it calls."""
