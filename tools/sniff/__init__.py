"""`ugpu sniff`: record, decode and compare what programs ask of NVIDIA's kernel driver."""
