"""Thunderbolt and USB4 enclosures, as Linux and bolt know them."""
