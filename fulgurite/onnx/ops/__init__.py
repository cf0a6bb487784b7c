"""Every operator of ONNX that is built, by family, each loaded when an operator is not found.

In: the domain and name of an operator. Out: its entry, if there is one. Families are modules that
fill the table (`table.py`) when they are imported: group by group, what most models have first,
until the operator is there. So a model pays for few, and no list of operators is kept.
"""

from types import ModuleType

from ..._lazy import FORK_LOCK
from ..errors import UnsupportedError
from ..table import MICROSOFT, OPERATORS, Entry

Families = tuple[ModuleType, ...]


def _common() -> Families:
    from . import casting, elementwise, folding, indexing, movement, reduction, shaping
    from .nn import activation, linear

    return casting, elementwise, folding, indexing, movement, reduction, shaping, activation, linear


def _networks() -> Families:
    from .nn import convolution, normalization, pooling, recurrent

    return convolution, normalization, pooling, recurrent


def _quantised() -> Families:
    from . import quantised

    return (quantised,)


def _rarer() -> Families:
    from . import control, random, sequences, signal, sorting
    from .nn import attention, image, losses, resizing

    return control, random, sequences, signal, sorting, attention, image, losses, resizing


def _rarest() -> Families:
    from . import deprecated, ensembles, learning, strings, training

    return deprecated, ensembles, learning, strings, training


def _contributed() -> Families:
    from .contrib import arithmetic, attention, epilogues, image, language, normalization, quantized

    return arithmetic, attention, epilogues, image, language, normalization, quantized


# families whose kernels have one text for all sizes, which is no slower than one for a size
ANY_SIZE = frozenset({
    "activation", "attention", "casting", "elementwise", "indexing", "linear", "movement",
    "normalization", "reduction", "shaping",
})  # fmt: skip
_waiting = [_contributed, _rarest, _rarer, _quantised, _networks, _common]
_waiting_microsoft = [_contributed]


def entry_of(domain: str, name: str) -> Entry | None:
    """The entry of an operator; families of its domain are loaded until it is there."""
    waiting = _waiting_microsoft if domain == MICROSOFT else _waiting
    while (found := OPERATORS.get((domain, name))) is None and waiting:
        with FORK_LOCK:
            if waiting:  # not loaded by another thread meanwhile
                waiting[-1]()
                waiting.pop()
    return found


def find(domain: str, name: str, version: int) -> Entry:
    """The entry of an operator, or an error that says what is missing."""
    domain = "" if domain == "ai.onnx" else domain
    found = entry_of(domain, name)
    if found is None:
        where = f"{domain}::" if domain else ""
        raise UnsupportedError(
            f"operator {where}{name} is not built",
            "export the model without it, or give the model a function of this name",
        )
    if version < found.since:
        raise UnsupportedError(
            f"operator {name} of opset {version} is not built, only from {found.since} on",
            "convert the model to a newer opset",
        )
    return found
