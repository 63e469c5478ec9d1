"""PCI functions through VFIO and iommufd."""
