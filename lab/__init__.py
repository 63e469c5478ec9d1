"""Campaigns: random work compared with an independent judge, at any size, by hand and in CI."""
