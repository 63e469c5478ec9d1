"""The native loop over groups and clusters, and its worker threads."""
