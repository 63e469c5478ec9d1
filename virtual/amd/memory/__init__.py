"""Memory of the virtual card: VRAM, HDP, and the hubs that walk page tables."""
