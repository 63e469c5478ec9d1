"""Programs that measure or judge: campaigns whose size is an argument."""
