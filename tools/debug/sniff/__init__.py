"""`ugpu sniff`: record, decode and compare a program's requests to NVIDIA's driver or to KGSL."""
