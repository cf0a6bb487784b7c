"""A small graph, simplified: what `make demo` shows until tensors exist."""
