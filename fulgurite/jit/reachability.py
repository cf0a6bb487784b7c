"""What a function can reach before it runs: arguments, cells, globals, attributes, item by item.

In: a function and the arguments of a call. Out: a `Survey`: Python source that finds every such
thing again in a later call and says where that differs (`checks`), the tensors and numbers among
them, and a snapshot of every place that the function could change (`holders`). Nothing is run: what
code can read comes from its bytecode (`reads.py`), what it calls is followed, until no new name is
found. It is an upper bound, so an answer that depends on something else cannot slip through: what
cannot be followed is a reason not to replay (`outside`).
"""

from __future__ import annotations

import enum
import functools
import io
import os
import random
import sys
import types
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Set
from operator import attrgetter, is_not, methodcaller
from typing import Any

import numpy as np

from ..core.lazy_named_tuple import NamedTuple
from ..core.node import Node
from ..core.ops.effect import TAPE
from ..tensor import Tensor, from_numpy
from .bytecode_reads import BY_NAME, Reads, reads
from .guards import Checks
from .introspection import (
    OF_CLASSES,
    absolute_name,
    can_be_found,
    class_names,
    is_installed,
    is_plain,
    is_tree,
    labels_of,
    literal,
    owner,
    place_of_function,
    place_of_module,
    same_array,
    same_items,
    slots_of,
    unwrapped,
    within,
)
from .purity import CHANGING, FILES, asks_the_world, has_hidden_state, lasts, touches_files
from .side_effects import MISSING, Holder
from .symbolic_number import Numbers
from .variables import Variables

_MOST = 50_000  # things looked at: with more, checking them costs more than a replay saves
_VALUES = (str, bytes, int, float, complex, range, slice, np.generic, np.dtype)
_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
_EXACT = frozenset({*_VALUES, bool, type(None)})
_TEXTS = frozenset({str, bytes, int, bool})  # those that are equal and of one type are the same
_SINGLETONS = frozenset({type(None), bool, type(Ellipsis), type(NotImplemented)})
_GENERATORS = (random.Random, np.random.RandomState, np.random.Generator)
_DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType)
_CACHE = "_cache"  # of modules: what can be found again
_KINDS = "._kinds"  # of modules: a table that no two share


def _is_value(value: Any) -> bool:
    return isinstance(value, _VALUES) and not isinstance(value, enum.Enum)


def _is_static(value: Any, kind: type) -> bool:
    """True if a thing is known by its value: it holds nothing else, nor bound variables."""
    if kind is slice:  # of bound variables the values are given at run time
        return Node not in (type(value.start), type(value.stop), type(value.step))
    return kind in _EXACT or (_is_value(value) and not hasattr(value, "__dict__"))


class Thing(NamedTuple):
    """Something that a call reaches, when it is met first."""

    value: Any
    kind: type
    name: str  # the variable that holds it in a later call
    path: str
    argument: bool  # is it an argument, or in one?


class Survey(Checks):
    """One look at everything that a call can reach."""

    def __init__(
        self, function: Any, args: tuple[Any, ...], keywords: dict[str, Any], numbers: Numbers,
        floating: Set[str] = frozenset(),
    ) -> None:  # fmt: skip
        self.names = Reads()
        self.followed: set[types.CodeType] = set()
        self.numbers, self.floating = numbers, floating
        count = -1
        while count != self._size():  # until following brings no new name
            count = self._size()
            self._look(function, args, keywords)

    def _size(self) -> int:
        names = self.names
        stored = sum([len(kept) for kept in names.stored.values()])
        parts = (names.globals, names.cells, names.attributes, names.imports, self.followed)
        return sum([len(part) for part in parts]) + stored + names.any_attribute + names.catches

    def _look(self, function: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self.begin()
        self.tensors: list[tuple[str, Tensor, str]] = []  # variable, tensor, the path to it
        self.arrays: list[tuple[str, Any, str]] = []  # the same of NumPy arrays in arguments
        self.found: dict[int, tuple[str, Any]] = {}  # id -> variable and the thing itself
        self.holders: list[Holder] = []
        self._held: dict[int, str] = {}  # id of a thing -> the container that alone holds it, or ""
        self.shown: dict[int, Any] = {}  # id of an original -> what the function sees of it
        self.swapped: dict[int, str] = {}  # id of that -> the variable of the original
        self._globals_met: set[tuple[str, str]] = set()
        self.variables = Variables("arg" in self.names.attributes or self.names.any_attribute)
        self.numbers.begin()
        self.numbers.all_fixed |= "type" in self.names.globals  # it may ask for their type
        self.static_numbers: set[str] = set()  # the paths to numbers that were not stood in for
        # numbers that change from call to call: the place of each, and what stands there meanwhile
        self.installed: list[tuple[Holder, Any, Any]] = []
        stored = self.names.stored["attributes"]
        self.grads = bool({"grad", "backward"} & (self.names.attributes | stored))
        self.value(function, self.constant(function), "the function")
        self.line(f"if len(args) != {len(args)}:", f"{len(args)} arguments")
        names = f"[*keywords] != {self.constant(list(keywords))}" if keywords else "keywords"
        self.line(f"if {names}:", "the names of keyword arguments")
        labels = self.labels = labels_of(function, len(args))
        self.args = tuple([self.value(arg, f"args[{i}]", labels[i], True)
                           for i, arg in enumerate(args)])  # fmt: skip
        self.keywords = {key: self.value(value, f"keywords[{key!r}]", key, True)
                         for key, value in keywords.items()}  # fmt: skip
        self._apart()

    def _apart(self) -> None:
        """Check that things of one type that can change, and were apart, are so in later calls.

        Else one may be changed where another is read, and `is` has another answer. Those that are
        known by what they are (`known`) always are apart, tensors are looked at when their memory
        is (`Replay.bind`), and containers are apart if what each alone holds is.
        """
        loose = [holder for holder in self.holders if self._is_loose(holder)]
        held = [*[holder.thing for holder in loose], *[tensor for _, tensor, _ in self.tensors]]
        told = {self._held.get(id(thing), "") for thing in held}
        kinds: dict[type, dict[str, None]] = {
            np.ndarray: dict.fromkeys([a[0] for a in self.arrays])
        }
        for holder in loose:
            if holder.name not in told:
                kinds.setdefault(type(holder.thing), {})[holder.name] = None
        names = [name for alike in kinds.values() if len(alike) > 1 for name in alike]
        if names:
            self.line(f"if len({{*map(id, ({', '.join(names)}))}}) != {len(names)}:",
                      "two things are one")  # fmt: skip

    def _is_loose(self, holder: Holder) -> bool:
        """True of what may be another thing in a later call, and one with something else."""
        own = holder.kind == "grad" or holder.path.endswith(_KINDS)
        return holder.name.isidentifier() and holder.name not in self.known and not own

    def _holds(self, name: str, items: Iterable[Any]) -> None:
        """Note what a container holds of which every item is checked."""
        for item in items:
            self._held[id(item)] = "" if id(item) in self._held else name

    # --- things ----------------------------------------------------------------------------------

    def value(
        self,
        value: Any,
        source: str,
        path: str,
        argument: bool = False,
        at: tuple[Holder, Any] | None = None,
    ) -> Any:
        """Check a thing in later calls, and everything in it; what the function is to see of it.

        `at` says which place holds it: a number that changes from call to call is replaced there.
        """
        kind = type(value)
        if kind in _SINGLETONS:
            self.line(f"if {source} is not {value!r}:", path)
            return value
        if kind in (int, float):
            if argument:
                return self._number(value, source, path)
            if at is not None and path in self.floating:
                made = self._number(value, source, path)
                if made is not value:
                    self.installed.append((*at, made))
                return made
        if _is_static(value, kind):
            return self._static(value, source, path)
        known = self.found.get(id(value))
        if known is not None:
            self.line(f"if {source} is not {known[0]}:", f"{path} is another thing")
            return self.shown.get(id(value), value)
        if len(self.found) > _MOST:
            self._leave(f"the function reaches more than {_MOST} things")
            return value
        name = self.variable(source)
        self.found[id(value)] = (name, value)
        return self._visit(Thing(value, kind, name, path, argument))

    def _visit(self, thing: Thing) -> Any:
        """Look at a new thing by what it is; what the function is to see of it."""
        value = thing.value
        for kinds, visit in _VISITS:
            if isinstance(value, kinds) and (kinds is not _VALUES or _is_value(value)):
                seen = visit(self, thing)
                return value if seen is None else seen
        self._object(thing)
        return value

    def _parts(self, thing: Thing, *parts: str) -> None:
        """A thing that is known by its type and its parts."""
        self._typed(thing, thing.path)
        for part in parts:
            self.value(getattr(thing.value, part), f"{thing.name}.{part}", f"{thing.path}.{part}")

    def _typed(self, thing: Thing, reason: str) -> None:
        self.line(f"if type({thing.name}) is not {self.constant(thing.kind)}:", reason)

    def _identity(self, thing: Thing) -> None:
        self._same(thing.value, thing.name, thing.path)

    def _node(self, thing: Thing) -> None:
        if not self.variables.reach(self, thing.value, thing.name, thing.path):
            self._identity(thing)

    def _derived_value(self, thing: Thing) -> None:
        """A number or text of a class of the user's: what that adds to it, too."""
        self._static(thing.value, thing.name, thing.path)
        self._class(thing.kind, thing.path)
        self._attributes(thing)

    def _method(self, thing: Thing) -> None:
        self._typed(thing, thing.path)
        self.value(thing.value.__func__, f"{thing.name}.__func__", thing.path)
        self.value(thing.value.__self__, f"{thing.name}.__self__", f"{thing.path}.__self__")

    def _type(self, thing: Thing) -> None:
        self._identity(thing)
        self._changing(thing.value, thing.path)
        self._class(thing.value, thing.path)

    def _weak_reference(self, thing: Thing) -> None:
        self._identity(thing)
        self.value(thing.value(), f"{thing.name}()", f"{thing.path}()")

    def _view(self, thing: Thing) -> None:
        self._typed(thing, thing.path)
        self.value(thing.value.mapping, f"{thing.name}.mapping", thing.path)

    def _builtin(self, thing: Thing) -> None:
        """A function of C, or a method of something: of a list, an array, an iterator."""
        value, _, name, path, _ = thing
        held = value.__self__
        if held is None or isinstance(held, types.ModuleType | type):
            self._identity(thing)
            self._changing(value, path)
            return
        self.line(f"if type({name}) is not {self.constant(thing.kind)} or "
                  f"{name}.__name__ != {value.__name__!r}:", path)  # fmt: skip
        self._changing(value, path)
        self.value(held, f"{name}.__self__", f"{path}.__self__")

    def _number(self, value: Any, source: str, path: str) -> Any:
        name = self.variable(source)
        made = self.numbers.made(value, name, path)
        if self.numbers.all_fixed:
            self.static_numbers.add(path)
        if made is value:  # its value decides something
            return self._static(value, name, path)
        self.line(f"if type({name}) is not {self.constant(type(value))}:", f"the type of {path}")
        return made

    def settle_numbers(self) -> None:
        """Check the values of numbers that turned out to decide something."""
        for path, name, value in self.numbers.met:
            if path in self.numbers.fixed:
                self._static(value, name, path)

    def _tensor(self, thing: Thing) -> None:
        tensor, _, name, path, _ = thing
        self.tensors.append((name, tensor, path))
        if hasattr(tensor, "__dict__"):
            self._attributes(thing)
        if self.grads and TAPE in tensor.entry.node.watched:
            self.holders.append(Holder("grad", tensor, name, path, tensor.grad))
            self.value(tensor.grad, f"{name}.grad", f"{path}.grad")

    def _array(self, thing: Thing) -> Any:
        array, _, name, path, argument = thing
        if argument and array.dtype.kind in "biufc":
            made = from_numpy(array)
            self.arrays.append((name, made, path))
            about = self.constant((array.dtype, array.shape))
            self._typed(thing, path)
            self.line(f"if ({name}.dtype, {name}.shape) != {about}:", f"dtype or shape of {path}")
            self.shown[id(array)], self.swapped[id(made)] = made, name
            return made
        copy = array.copy()
        self.known["same_array"] = same_array
        self.line(f"if not same_array({name}, {self.constant(copy)}):",
                  f"the NumPy array {path} changed")  # fmt: skip
        self.holders.append(Holder("array", array, name, path, copy))
        return array

    # --- containers ------------------------------------------------------------------------------

    def _mapping(self, thing: Thing) -> Any:
        value, kind, name, path, _ = thing
        self._typed(thing, f"the type of {path}")
        held = [*value.items()]  # at one moment: other threads may add to it
        keys, argument = [key for key, _ in held], _is_rebuilt(thing)
        self.line(f"if [*{name}] != {self.constant(keys)}:", f"the keys of {path}")
        self._items(keys, name, f"a key of {path}")
        children = []
        places = self._unpacked(f"{name}.values()", len(held)) if kind is dict else []
        for i, (key, item) in enumerate(held):
            source = places[i] if places else f"{name}[{literal(key) or self.constant(key)}]"
            at = Holder("item", value, name, path, item, key), key
            children.append(self.value(item, source, f"{path}[{key!r}]", argument, at))
        items = [item for _, item in held]
        if isinstance(value, dict):
            self.holders.append(Holder("dict", value, name, path, dict(held)))
            self._holds(name, items)
        changed = argument and any(map(is_not, children, items))
        return self._contained(thing, dict(zip(keys, children, strict=True)) if changed else value)

    def _sequence(self, thing: Thing) -> Any:
        value, kind, name, path, _ = thing
        self._typed(thing, f"the type of {path}")
        held, argument = [*value], _is_rebuilt(thing)
        self.line(f"if len({name}) != {len(held)}:", f"the length of {path}")
        places = self._unpacked(name, len(held)) if kind in (list, tuple) else []
        places = places or [f"{name}[{i}]" for i in range(len(held))]
        children = [self.value(item, places[i], f"{path}[{i}]", argument)
                    for i, item in enumerate(held)]  # fmt: skip
        if isinstance(value, list):
            self.holders.append(Holder("list", value, name, path, held))
            self._holds(name, held)
        made = value
        if any(map(is_not, children, held)):
            made = kind(*children) if hasattr(kind, "_fields") else kind(children)
        return self._contained(thing, made)

    def _contained(self, thing: Thing, made: Any) -> Any:
        """What the function sees of a container, and what a class of the user's adds to it."""
        value, kind, name, path, _ = thing
        if kind not in (list, tuple, dict) and hasattr(value, "__dict__"):
            self._attributes(thing)
        if made is not value:
            self.shown[id(value)], self.swapped[id(made)] = made, name
            if not isinstance(made, tuple):
                self.holders[-1] = Holder(type(made).__name__, made, name, path, made.copy())
        return made

    def _items(self, items: list[Any], name: str, path: str) -> None:
        """Things that are equal to those that were there: are they those, and what they were?"""
        if all([type(item) is str for item in items]):
            return
        if all([type(item) in _TEXTS for item in items]):
            kinds = self.constant([*map(type, items)])
            self.line(f"if [*map(type, {name})] != {kinds}:", path)
            return
        if all([type(item) in _EXACT for item in items]):
            self.known["same_items"] = same_items
            self.line(f"if not same_items([*{name}], {self.constant(items)}):", path)
            return
        ids = self.constant([id(item) for item in items])
        self.line(f"if [*map(id, {name})] != {ids}:", f"{path} is another thing")
        for item in items:
            if type(item) not in _EXACT:
                self.value(item, self.constant(item), path)

    def _deque(self, thing: Thing) -> None:
        value, _, name, path, _ = thing
        self._typed(thing, f"the type of {path}")
        held = [*value]
        self.line(f"if len({name}) != {len(held)}:", f"the length of {path}")
        for i, item in enumerate(held):
            self.value(item, f"{name}[{i}]", f"{path}[{i}]")
        self.holders.append(Holder("deque", value, name, path, held))

    def _set(self, thing: Thing) -> None:
        value, kind, name, path, _ = thing
        self._typed(thing, f"the type of {path}")
        items = list(value)  # in this order: that of equal sets may differ
        self.line(f"if [*{name}] != {self.constant(items)}:", f"{path} changed")
        self._items(items, name, f"an item of {path}")
        if kind not in (set, frozenset) and hasattr(value, "__dict__"):
            self._attributes(thing)
        if isinstance(value, set):
            self.holders.append(Holder("set", value, name, path, value.copy()))

    def _bytes(self, thing: Thing) -> None:
        """A bytearray or an array of the standard library."""
        value, kind, name, path, _ = thing
        self._typed(thing, f"the type of {path}")
        copy = value[:] if isinstance(value, array) else value.copy()
        self.line(f"if {name} != {self.constant(copy)}:", f"{path} changed")
        if kind not in (bytearray, array) and hasattr(value, "__dict__"):
            self._attributes(thing)
        self.holders.append(Holder("bytearray", value, name, path, copy))

    # --- code ------------------------------------------------------------------------------------

    def _function(self, thing: Thing) -> None:
        function, _, name, path, _ = thing
        code = function.__code__
        held = name in self.known  # it is this very function: only its code may be another
        if not held:
            self.line(f"if type({name}) is not {self.constant(types.FunctionType)}:", path)
        self.line(
            f"if {name}.__code__ is not {self.constant(code)}:", f"{path} is another function"
        )
        where = place_of_function(function)
        if where in ("ours", "standard", "numpy") and not function.__closure__:
            self._changing(function, path)
            return
        if not held:
            scope = self.constant(function.__globals__)
            self.line(f"if {name}.__globals__ is not {scope}:", path)
        found = reads(code) if where in ("user", "module") else Reads()
        self._follow(code, found)
        cells = zip(function.__closure__ or (), code.co_freevars, strict=True)
        for i, (cell, label) in enumerate(cells):
            self._cell(cell, f"{name}.__closure__[{i}]", label)
        for part in ("__defaults__", "__kwdefaults__"):
            if getattr(function, part):
                self.value(getattr(function, part), f"{name}.{part}", f"{path}.{part}")
        if function.__dict__:
            self._some(function.__dict__, f"{name}.__dict__", path, function, name)
        elif self.names.any_attribute or self.names.catches:
            self.line(f"if {name}.__dict__:", f"the attributes of {path}")
        self._globals(function.__globals__, found)

    def _follow(self, code: types.CodeType, found: Reads) -> None:
        if code in self.followed:
            return
        self.followed.add(code)
        self.names.add(found)

    def _cell(self, cell: types.CellType, source: str, label: str) -> None:
        name = self.variable(source)
        known = self.found.get(id(cell))
        if known is not None:
            self.line(f"if {name} is not {known[0]}:", f"{label} is another variable")
            return
        self.found[id(cell)] = (name, cell)
        try:
            inside = cell.cell_contents
        except ValueError:
            self._leave(f"{label} has no value yet")
            return
        holder = Holder("cell", cell, name, label, inside)
        self.holders.append(holder)
        self.value(inside, f"{name}.cell_contents", label, at=(holder, None))

    def _globals(self, names: dict[str, Any], found: Reads) -> None:
        if found.outside:
            self._leave(found.outside)
        key = self.constant(names)
        for label in sorted(found.globals | found.stored["globals"]):
            if (key, label) in self._globals_met:
                continue
            self._globals_met.add((key, label))
            inside = names.get(label, MISSING)
            holder = Holder("item", names, key, label, inside, label)
            self.holders.append(holder)
            if inside is not MISSING and label in found.globals:
                self.value(inside, f"{key}[{label!r}]", label, at=(holder, label))
            elif label in found.globals:
                self.line(f"if {label!r} in {key}:", f"the global {label}")
        for label, inner in sorted(found.imports):
            self._import(absolute_name(label, names), inner)

    def _import(self, full: str, names: tuple[str, ...]) -> None:
        """What an import statement inside a function finds: only modules that are loaded."""
        module = sys.modules.get(full)
        if module is None:
            absent = can_be_found(full)
        else:
            self.value(module, self.constant(module), full)
            wanted = [k for k in names if f"{full}.{k}" not in sys.modules and k != "*"]
            absent = any([not hasattr(module, name) for name in wanted])
        if absent:
            self._leave(f"{full} has not been imported yet")

    def _changing(self, thing: Any, path: str) -> None:
        """Is it something whose answers differ from call to call?"""
        owner, name = getattr(thing, "__module__", None) or "", getattr(thing, "__name__", "")
        if isinstance(getattr(thing, "__self__", None), _GENERATORS) or _answers_vary(
            str(owner), str(name)
        ):
            self._leave(f"{path} gives another answer in every call")
        if owner == "builtins" and name in BY_NAME:
            self.names.any_attribute = True  # under another name

    # --- classes, modules, objects ---------------------------------------------------------------

    def _class(self, kind: type, path: str) -> None:
        """The attributes and methods of a class and its bases that code may use."""
        if type(kind) is not type:
            self._class(type(kind), path)
        for base in kind.__mro__:
            where = owner(base)
            if base is object or where in ("ours", "standard", "numpy"):
                continue
            own, key = dict(base.__dict__), self.constant(base)
            if (key, "") in self._globals_met:
                continue
            self._globals_met.add((key, ""))
            if where == "user":
                self.holders.append(Holder("attrs", base, key, base.__name__, own))
                self.line(f"if len({key}.__dict__) != {len(own)} or {key}.__bases__ is not "
                          f"{self.constant(base.__bases__)}:",  # a new one may hide a base's
                          f"the attributes of {base.__name__}")  # fmt: skip
            for label, inside in own.items():
                self._class_entry(base, key, label, inside)

    def _class_entry(self, base: type, key: str, label: str, inside: Any) -> None:
        """A method or an attribute in the table of a class."""
        source, path = f"{key}.__dict__[{label!r}]", f"{base.__name__}.{label}"
        used = label in self.names.attributes or self.names.any_attribute
        plain = unwrapped(inside)
        if isinstance(plain, types.FunctionType):
            special = label.startswith("__") and label.endswith("__")
            if owner(base) == "user" and (special or used):
                self.line(f"if {source} is not {self.constant(inside)}:", path)
                self._member(plain, path)
            elif label == "forward":
                self.line(f"if {source} is not {self.constant(inside)}:", path)
        elif used and label not in OF_CLASSES and not isinstance(inside, _DESCRIPTORS):
            self.value(inside, source, path)

    def _member(self, plain: types.FunctionType, path: str) -> None:
        if id(plain) not in self.found:
            name = self.constant(plain)
            self.found[id(plain)] = (name, plain)
            self._function(Thing(plain, types.FunctionType, name, path, False))

    def _module(self, thing: Thing) -> None:
        self._identity(thing)
        module, name = thing.value, thing.name
        where, own = place_of_module(module.__name__), vars(module)
        every = self.names.any_attribute and where == "user" and not is_installed(module)
        for label in [k for k in [*own] if k in self.names.attributes or (every and k[:2] != "__")]:
            self._module_entry(module, name, where, label)
        if module is os and "getenv" in self.names.attributes:
            self.value(os.environ, f"{name}.environ", "os.environ")

    def _module_entry(self, module: types.ModuleType, name: str, where: str, label: str) -> None:
        """A name in a module."""
        own, source = vars(module), f"{name}.{label}"
        inside = own[label]
        if where == "user":
            self.holders.append(Holder("item", own, f"vars({name})", source, inside, label))
            self.value(inside, source, source)
        elif callable(inside) and _answers_vary(module.__name__, label):
            self._leave(f"{source} gives another answer in every call")
        elif module is sys and label == "modules":
            self._leave("it looks for modules by name")
        elif isinstance(inside, types.ModuleType):
            self.value(inside, source, source)
        elif where in ("ours", "module") and callable(inside):
            self._same(inside, source, source)
        elif where == "numpy" and label in FILES:
            self._leave(f"{source} reads a file")
        elif where == "standard" and not callable(inside):
            self.value(inside, source, source)  # os.environ, sys.path and the like

    def _namespace(self, thing: Thing) -> None:
        self._typed(thing, f"the type of {thing.path}")
        self._attributes(thing)

    def _object(self, thing: Thing) -> None:
        """Any other thing: by its attributes if it has some, else by what it is."""
        value, kind, name, path, _ = thing
        where = owner(kind)
        if hasattr(kind, "__fulgurite_jit__"):
            self._identity(thing)
            self.value(value.function, self.constant(value.function), path)
        elif (where == "ours" and not hasattr(value, "__dict__")) or lasts(value):
            self._lasting(thing)
        elif isinstance(value, types.BuiltinFunctionType | types.BuiltinMethodType) or (
            callable(value) and where in ("standard", "numpy")
        ):
            self._identity(thing)
            self._changing(value, path)
            inner = getattr(value, "__wrapped__", None)  # of functools.lru_cache and the like
            if inner is not None:
                self.value(inner, f"{name}.__wrapped__", path)
        elif why := _why_unseen(value, kind):
            self._leave(f"{path} {why}")
        elif not hasattr(value, "__dict__") and not slots_of(kind):
            self._identity(thing)
        else:
            self._typed(thing, f"the type of {path}")
            self._class(kind, path)
            self._attributes(thing)

    def _lasting(self, thing: Thing) -> None:
        """A thing that stays as it is."""
        self._identity(thing)
        if isinstance(thing.value, enum.Enum):
            self._class(thing.kind, thing.path)
        self.names.any_attribute |= isinstance(thing.value, attrgetter | methodcaller)
        if touches_files(thing.value, self.names.attributes):
            self._leave(f"{thing.path} is a path whose file is looked at")

    def _attributes(self, thing: Thing) -> None:
        """The attributes of an object that code may read; of modules and the like all of them."""
        value, kind, name, path, _ = thing
        followed = kind is types.SimpleNamespace or owner(kind) == "user"
        whole = is_tree(kind) or self.names.any_attribute or not followed or any(
            [owner(base) in ("module", "standard") and base is not object
             for base in kind.__mro__ if base is not types.SimpleNamespace])  # fmt: skip
        if owner(kind) == "module" and not hasattr(kind, "__fulgurite_module__"):
            self.names.attributes.add("grad")  # an optimiser's code is not looked at
        own = getattr(value, "__dict__", None)
        if own is not None:
            self._some(own, f"{name}.__dict__", path, value, name, whole)
        for label in slots_of(kind):
            inside = getattr(value, label, MISSING)
            place = Holder("slot", value, name, f"{path}.{label}", inside, label)
            self.holders.append(place)
            if inside is not MISSING and (whole or label in self.names.attributes):
                self.value(inside, f"{name}.{label}", f"{path}.{label}", at=(place, label))

    def _some(
        self, own: dict[str, Any], source: str, path: str, thing: Any, name: str,
        whole: bool = False,
    ) -> None:  # fmt: skip
        """Those of the attributes in a table that code may read, or the `whole` of it."""
        kept = dict(own)
        kept.pop(_CACHE, None)
        place = Holder("attrs", thing, name, path, kept)
        self.holders.append(place)
        table = ""
        labels = self.names.attributes
        for label, inside in kept.items():
            if whole or label in labels:
                held = f"{name}.{label}"
                if not is_plain(type(thing), label):
                    table = table or self.variable(source)
                    held = f"{table}[{label!r}]"
                self.value(inside, held, f"{path}.{label}", at=(place, label))
        # the class has some; the object may get one of its own
        missing = [] if whole else sorted(labels & class_names(type(thing)) - kept.keys())
        if missing:
            table = table or self.variable(source)
        table = table or source
        for label in missing:
            self.line(f"if {label!r} in {table}:", f"{path}.{label}")
        if self.names.catches and not missing and not whole:  # it may try for one that is missing
            self.line(f"if len({table}) != {len(own)}:", f"the attributes of {path}")
        if whole:
            self._holds(name, kept.values())
            self.line(f"if len({table}) != {len(own)} and "
                      f"[k for k in {table} if k != {_CACHE!r}] != "
                      f"{self.constant(list(kept))}:", f"the attributes of {path}")  # fmt: skip


def _is_rebuilt(thing: Thing) -> bool:
    """True if the numbers and arrays in a container of an argument may be replaced."""
    return thing.argument and (thing.kind in (list, tuple, dict) or hasattr(thing.kind, "_fields"))


def _answers_vary(module: str, name: str) -> bool:
    """True if a function gives another answer in every call: of the time, of the world."""
    return within(module, CHANGING) or asks_the_world(module, name)


def _why_unseen(value: Any, kind: type) -> str:
    """Why a change of an object would not be seen; empty if it would."""
    if hasattr(kind, "__next__") or isinstance(value, io.IOBase):
        return "is an iterator or a file: reading it changes it"
    if within(str(kind.__module__), CHANGING):
        return "gives another answer in every call"
    return f"is a {kind.__name__}, whose changes cannot be seen" if has_hidden_state(kind) else ""


# how to look at a thing, by the first that it is an instance of
_VISITS: tuple[tuple[type | tuple[type, ...], Callable[[Survey, Thing], Any]], ...] = (
    (Tensor, Survey._tensor),
    (Node, Survey._node),
    (slice, lambda survey, thing: survey._parts(thing, "start", "stop", "step")),
    (_VALUES, Survey._derived_value),
    (dict, Survey._mapping),
    ((list, tuple), Survey._sequence),
    ((set, frozenset), Survey._set),
    (deque, Survey._deque),
    ((bytearray, array), Survey._bytes),
    (np.ndarray, Survey._array),
    (types.FunctionType, Survey._function),
    (types.MethodType, Survey._method),
    (functools.partial, lambda survey, thing: survey._parts(thing, "func", "args", "keywords")),
    (type, Survey._type),
    (types.ModuleType, Survey._module),
    (types.CellType, Survey._identity),
    (weakref.ref, Survey._weak_reference),
    ((types.BuiltinMethodType, types.MethodWrapperType), Survey._builtin),
    (types.MappingProxyType, Survey._mapping),
    (_VIEWS, Survey._view),
    (types.SimpleNamespace, Survey._namespace),
)
