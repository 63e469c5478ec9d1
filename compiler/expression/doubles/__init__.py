"""Elementary functions on float64."""
