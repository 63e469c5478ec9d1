"""Firmware of the bridge: images, and the flash that they are written to."""
