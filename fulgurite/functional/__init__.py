"""The functions of the module, by family; `fulgurite/__init__.py` is where users find them.

In: tensors, and whatever becomes one. Out: tensors, lazy. Each function is a short composition
of checked constructors (`core/build.py`) and of other functions; none adds an op, none computes.
"""

import fulgurite.tensor  # noqa: F401  (first: the functions need `Tensor`, and it needs them)
