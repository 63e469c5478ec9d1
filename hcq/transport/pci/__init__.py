"""PCI functions of this machine, through Linux's sysfs files."""
