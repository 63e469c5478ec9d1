"""Find devices by name: chips, drivers, transports."""
