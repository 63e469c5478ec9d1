"""What Adreno's command processor reads: packets, launches, descriptors of textures."""
