"""The card as a PCI function."""
