"""Programs that run and compile tensor scripts."""
