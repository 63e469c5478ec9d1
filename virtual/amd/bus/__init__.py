"""Interfaces of the virtual card to the host: PCI function, DMA, NBIO and interrupts."""
