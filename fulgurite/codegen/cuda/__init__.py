"""Kernels as Triton text for NVIDIA GPUs, and Triton as the compiler of that text."""
