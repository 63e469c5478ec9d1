"""The host unit: channels, runlists, push buffers."""
