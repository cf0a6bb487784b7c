"""Hopper's own forms of large products and of online reductions, as Gluon text."""
