"""Firmware of the virtual card: PSP, SMU, and the images that they accept."""
