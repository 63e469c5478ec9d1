"""Host threads that run groups of waves."""
