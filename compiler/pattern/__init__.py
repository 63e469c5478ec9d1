"""Recognisers of products, row reductions and attention, and cost estimates, for any target."""
