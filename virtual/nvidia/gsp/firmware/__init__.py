"""Synthetic firmware files and VBIOS, in the containers that real loaders read."""
