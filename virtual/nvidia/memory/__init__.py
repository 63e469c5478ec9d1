"""Memory of the virtual GPU: pages, page tables, translation."""
