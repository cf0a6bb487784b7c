"""Symbolic integers: named sizes, and polynomials of them."""
