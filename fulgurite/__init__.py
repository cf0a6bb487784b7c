"""Fulgurite: a lazy-tensor compiler and runtime."""

__version__ = "0.1.0"
