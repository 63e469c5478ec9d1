"""Navi31 (RX 7900 XTX, gfx1100)."""
