"""Networks: modules, layers and losses with the names, shapes and first values that torch gives."""

from .linear import Linear
from .module import Module
from .parameter import Parameter
from .state import Loaded

__all__ = ["Linear", "Loaded", "Module", "Parameter"]
