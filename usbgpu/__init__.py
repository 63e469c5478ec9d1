"""Cards outside the computer: behind a USB3 bridge, and in Thunderbolt enclosures."""
