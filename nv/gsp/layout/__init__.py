"""What the GSP finds in memory when it starts: carve-out of VRAM, image, arguments."""
