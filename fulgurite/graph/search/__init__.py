"""Search: alternatives to the greedy kernels, what they cost, and which are chosen."""
