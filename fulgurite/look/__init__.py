"""Looking inside: where time and memory go, why something was compiled, what made a NaN.

In: a block, a function or tensors. Out: reports that print, and that have their figures as data.
Each of these functions loads what it needs when it is called: importing the package pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .._lazy import FORK_LOCK
from ..runtime.holders import NAMED

if TYPE_CHECKING:
    from ..runtime.holders import Holder
    from .answers import Answers
    from .bisection import Comparison
    from .memory import MemoryReport
    from .pages import Page
    from .profiler import Profile


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
        from .profiler import Profile
    return Profile()


def memory_report() -> MemoryReport:
    """Who holds memory now: every value with its size, your line, its module and name.

    `print(report)` shows the largest; `by_line()`, `by_module()` and `peak_by_line()` add them up.
    `later - earlier` is what came and went between two reports.

    >>> before = fg.memory_report()
    >>> x = fg.ones((256, 256)).realize()
    >>> came = (fg.memory_report() - before).came
    >>> [value.shape for value in came]
    [(256, 256)]
    """
    with FORK_LOCK:
        from . import memory
    return memory.memory_report()


def compare(
    function: Callable[..., Any], device_a: str, device_b: str, *arguments: Any,
    rtol: float | None = None, **keywords: Any,
) -> Comparison:  # fmt: skip
    """The first op of a function whose values differ on two devices, with your line.

    The function is called once with the arguments; both devices get its graph and the same inputs.
    `rtol` is what results may differ by, relative to the largest number (default: by dtype).

    >>> found = fg.compare(lambda x: fg.softmax(x * 2), "cpu", "reference", fg.ones((3, 4)))
    >>> found.equal, found.op
    (True, '')
    """
    with FORK_LOCK:
        from . import bisection
    return bisection.compare(function, device_a, device_b, *arguments, rtol=rtol, **keywords)


def why(*things: Any) -> Answers:
    """Answers about what was compiled: why again, why these kernels, why so slow; and what to do.

    Give tensors (the kernels that would run), functions of `fg.jit` (their captures) or a profile
    (what holds its kernels back). Without any it is about what was compiled and captured lately.

    >>> x = fg.ones((64, 64)).realize()
    >>> found = fg.why(fg.softmax(x @ x))
    >>> found.about("kernels")[0].because[0][:13]
    'a contraction'
    """
    with FORK_LOCK:
        from . import answers
    return answers.why(*things)


def viz_data(*things: Any, profile: Profile | None = None, assembly: bool = True) -> dict[str, Any]:
    """A compilation as data for a picture: graph, passes, laws, kernels, memory, machine code.

    Give tensors that are not computed yet, or a function of `fg.jit` after its first call; with a
    profile its time line is in it. `fulgurite/look/dump.py` says what each key holds.

    >>> x = fg.ones((8, 8)).realize()
    >>> data = fg.viz_data(fg.softmax(x * 1 + 0.5), assembly=False)
    >>> [law["law"] for step in data["passes"] for law in step["laws"]]
    ['mul-one']
    """
    with FORK_LOCK:
        from . import dump
    return dump.viz_data(*things, profile=profile, assembly=assembly)


def viz(
    *things: Any, profile: Profile | None = None, title: str = "fulgurite", assembly: bool = True
) -> Page:
    """A page that shows a compilation: graph, passes, fusion, memory, kernels, time.

    Give tensors that are not computed yet, or a function of `fg.jit` after its first call; with a
    profile it has a time line and a flame graph. `.save("page.html")` writes one file that opens
    without a server or network; notebooks show it where it is.

    >>> x = fg.ones((8, 8)).realize()
    >>> page = fg.viz(fg.softmax(x @ x), title="attention", assembly=False)
    >>> page.html.startswith("<!doctype html>")
    True
    """
    with FORK_LOCK:
        from . import dump, pages
    data = dump.viz_data(*things, profile=profile, assembly=assembly)
    return pages.Page(data, title)


def _named_holders() -> Sequence[Holder]:
    """Who holds memory: what an error says when there is no more."""
    from .memory import named_holders

    return named_holders()


NAMED.append(_named_holders)
