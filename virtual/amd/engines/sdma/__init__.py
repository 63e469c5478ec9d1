"""The copy engines: registers, queue slots, rings and packets."""
