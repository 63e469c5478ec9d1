"""Thunderbolt and USB4 enclosures, through Linux and bolt."""
