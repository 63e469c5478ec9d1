"""What virtual PCI cards of all vendors share: host memory behind an IOMMU, windows, messages."""
