"""Navi44 (RX 9060 XT, gfx1200)."""
