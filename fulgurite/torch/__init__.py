"""Models of torch: `torch.compile(model, backend="fulgurite")`, and models both ways.

Nothing else in this package imports torch: this one needs `pip install "fulgurite[torch]"`. torch
finds the backend by its entry point; importing this package makes it known, too, where fulgurite
was not installed but found on the path.
"""

from __future__ import annotations

from torch._dynamo import list_backends, register_backend

from .backend import fulgurite
from .looking import Explanation, explain
from .reporting import FallbackWarning, Report, report

__all__ = ["Explanation", "FallbackWarning", "Report", "explain", "fulgurite", "report"]

if "fulgurite" not in list_backends(exclude_tags=None):
    register_backend(fulgurite, name="fulgurite")
