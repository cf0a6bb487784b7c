"""Text into machine code: Triton as a compiler, and the processes that run it."""
