"""Address ranges and page tables of any format."""
