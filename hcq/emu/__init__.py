"""What every virtual shader core shares: memory through page tables, lanes as vectors."""
