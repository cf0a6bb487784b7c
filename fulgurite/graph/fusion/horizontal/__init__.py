"""Horizontal fusion: kernels of which none reads the other's results share a launch."""
