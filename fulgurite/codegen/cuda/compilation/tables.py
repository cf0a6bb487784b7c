"""How many processes compile, and what they do while nobody asks; loaded before all else."""

MOST_COMPILERS = 16  # processes of the host that compile at the same time
PLAIN = 2  # of them, that wait for a text without loading Gluon
IDLE = 0.02  # seconds after which the others load it: a graph is being planned
YOUNG = 50_000  # objects of a text between two collections of garbage
