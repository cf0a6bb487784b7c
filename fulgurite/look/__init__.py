"""Looking inside: where time and memory go, why something was compiled, what made a NaN.

In: a block, a function or tensors. Out: reports that print, and that have their figures as data.
Each of these functions loads what it needs when it is called: importing the package pays nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import FORK_LOCK

if TYPE_CHECKING:
    from .profile import Profile


def profile() -> Profile:
    """Where the time of a block goes: by kernel, by your line, by module.

    `print(p)` shows a table, `p.table("line")` another; `p.kernels`, `p.lines` and `p.modules` are
    its rows, `p.events` what was compiled; `p.save("trace.json")` writes a trace for Perfetto.

    >>> x = fg.ones((64, 64)).realize()
    >>> with fg.profile() as p:
    ...     y = fg.softmax(x @ x).sum().realize()
    >>> p.seconds > p.kernel_seconds > 0, len(p.kernels) > 0
    (True, True)
    """
    with FORK_LOCK:
        from .profile import Profile
    return Profile()
