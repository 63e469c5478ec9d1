"""`ugpu sniff`: record, decode and compare what programs ask of NVIDIA's driver or of KGSL."""
