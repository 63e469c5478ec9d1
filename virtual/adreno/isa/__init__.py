"""Shader processors that run ir3 machine code."""
