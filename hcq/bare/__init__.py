"""Kit for cards without a kernel driver: VRAM, page tables, firmware, holders, resets.

Only bare-metal drivers import it. docs/adr/0008-bare-metal-kit.md shows two vendors on it.
"""
