"""The copy engines: registers, queue slots, rings, packets."""
