"""How many examples a property is tried on: shares of what the run's hypothesis profile says.

In: the profile (`pytest --hypothesis-profile fast`, `ci` by default, or `nightly`; conftest.py has
their numbers). Out: decorators that say what one example costs. A property with none of them is
tried on as many examples as the profile says.
"""

from __future__ import annotations

from hypothesis import settings


def _share(of: float) -> settings:
    return settings(max_examples=max(2, round(of * settings().max_examples)))


arithmetic = _share(4)  # an example is a little arithmetic or a small graph
program = _share(0.4)  # it computes a small program
kernel = _share(0.25)  # it compiles a kernel
kernels = _share(0.15)  # it compiles several, or large ones
