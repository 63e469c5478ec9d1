"""`ugpu sniff` for KGSL, Qualcomm's kernel driver: calls, command streams, export to .rd files."""
