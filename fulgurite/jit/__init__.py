"""Capturing functions and replaying them: see function.py, and docs/jit.md for users."""

from .function import Jitted as Jitted
from .function import jit as jit
