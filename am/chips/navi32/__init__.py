"""Navi32 (RX 7800 XT, gfx1101)."""
