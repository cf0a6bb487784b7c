"""Devices of the tests: one in another process, and one of sixty lines."""
