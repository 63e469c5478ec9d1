"""The bridge between USB and PCI Express, with either firmware, and the card behind it."""
