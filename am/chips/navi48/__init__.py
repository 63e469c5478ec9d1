"""Navi48 (RX 9070 XT, gfx1201)."""
