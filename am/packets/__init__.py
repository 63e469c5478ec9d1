"""Formats that AMD chips read: packets, queue descriptors, page table entries, launches."""
