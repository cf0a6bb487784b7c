"""Code generators: kernels in index notation become text, text becomes machine code."""
