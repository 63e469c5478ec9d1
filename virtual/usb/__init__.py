"""A strict model of an ASM2464PD enclosure: USB in front, a PCI Express hierarchy behind."""
