"""The card's registers and memory: BAR 0, falcons, VRAM."""
