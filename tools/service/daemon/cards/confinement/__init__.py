"""What a process that does work of clients may ask of the system, and how it ends."""
