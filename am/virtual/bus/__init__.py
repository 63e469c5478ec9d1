"""How the virtual card meets the host: PCI function, DMA, NBIO and interrupts."""
