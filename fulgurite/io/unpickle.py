"""A reader of pickles that executes nothing: a stack machine over an allow-list of opcodes.

In: the bytes of a pickle, and a table of the globals it may name. Out: the object it describes,
made of plain containers, numbers and text, and of what the table's own functions give. The
invariant: no module is imported, no attribute is looked up and nothing is called but the functions
of the table, which take parts of the same pickle and are ours. Opcodes outside the list are
refused by name, so new ones do nothing until somebody has thought about them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

from .files import Refusal

LONGEST_INT = 1024  # bytes of a whole number
LONGEST_LINE = 4096  # bytes of a name
PLAIN = (str, bytes, int, float, bool, type(None))
_MARK = object()


class Global:
    """A name that a pickle may use: a function of ours, or a stand-in that only has a name."""

    def __init__(self, name: str, make: Callable[..., Any] | None = None) -> None:
        self.name, self.make = name, make


class Buildable:
    """An object of a table's function that a pickle may give a state to."""

    def build(self, state: Any) -> None:
        """Take the state, or refuse it."""
        raise Refusal("it sets a state that is not expected")


def unpickle(data: bytes, globals_: Mapping[str, Global], persistent: Callable[[Any], Any]) -> Any:
    """The object of a pickle; names that are not in the table are refused."""
    return _Machine(data, 0, globals_, persistent).run()


def unpickle_part(
    data: bytes | memoryview,
    start: int,
    globals_: Mapping[str, Global],
    persistent: Callable[[Any], Any],
) -> tuple[Any, int]:
    """The object of a pickle that begins somewhere in a file, and where it ends."""
    machine = _Machine(data, start, globals_, persistent)
    return machine.run(), machine.at


class _Machine:
    def __init__(
        self,
        data: bytes | memoryview,
        start: int,
        globals_: Mapping[str, Global],
        persistent: Callable[[Any], Any],
    ) -> None:
        self.data, self.at = data, start
        self.globals, self.persistent = globals_, persistent
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        while True:
            code = self.take(1)
            if code == b".":
                found = self.pop()
                if self.stack:
                    raise Refusal("its pickle leaves values behind")
                return found
            step = STEPS.get(code)
            if step is None:
                raise Refusal(f"its pickle uses the opcode {code!r}, which is not allowed")
            step(self)

    # --- reading -----------------------------------------------------------------------------

    def take(self, count: int) -> bytes:
        found = self.data[self.at : self.at + count]
        if len(found) != count:
            raise Refusal("its pickle ends too early")
        self.at += count
        return bytes(found)

    def number(self, layout: str) -> Any:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))[0]

    def line(self) -> str:
        found, end, _ = bytes(self.data[self.at : self.at + LONGEST_LINE]).partition(b"\n")
        if not end:
            raise Refusal("its pickle ends too early, or has a name that is too long")
        self.at += len(found) + 1
        return found.decode()

    # --- the stack ---------------------------------------------------------------------------

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        if not self.stack or self.stack[-1] is _MARK:
            raise Refusal("its pickle takes a value that is not there")
        return self.stack.pop()

    def top(self) -> Any:
        value = self.pop()
        self.stack.append(value)
        return value

    def above_mark(self) -> list[Any]:
        for place in range(len(self.stack) - 1, -1, -1):
            if self.stack[place] is _MARK:
                found = self.stack[place + 1 :]
                del self.stack[place:]
                return found
        raise Refusal("its pickle refers to a mark that is not there")

    def few(self, count: int) -> tuple[Any, ...]:
        return tuple([self.pop() for _ in range(count)][::-1])

    # --- what opcodes do ---------------------------------------------------------------------

    def put(self, key: int) -> None:
        self.memo[key] = self.top()

    def get(self, key: int) -> None:
        if key not in self.memo:
            raise Refusal("its pickle refers to a value that it did not store")
        self.push(self.memo[key])

    def name(self, module: str, name: str) -> None:
        whole = f"{module}.{name}"
        found = self.globals.get(whole)
        if found is None:
            raise Refusal(
                f"its pickle names {whole[:200]!r}, which is never executed here",
                "save plain tensors: torch.save(model.state_dict(), path)",
            )
        self.push(found)

    def stack_name(self) -> None:
        module, name = self.few(2)
        if not isinstance(module, str) or not isinstance(name, str):
            raise Refusal("its pickle names something by values that are no text")
        self.name(module, name)

    def reduce(self) -> None:
        function, arguments = self.few(2)
        if not isinstance(function, Global) or function.make is None:
            what = function.name if isinstance(function, Global) else type(function).__name__
            raise Refusal(f"its pickle calls {what}, which is no function here")
        if not isinstance(arguments, tuple):
            raise Refusal(f"its pickle calls {function.name} without arguments")
        self.push(function.make(*arguments))

    def build(self) -> None:
        state = self.pop()
        target = self.top()
        if isinstance(target, Buildable):
            target.build(state)
        elif not isinstance(target, dict) or not isinstance(state, dict):
            raise Refusal(f"its pickle sets the state of a {type(target).__name__}")
        # attributes of a dict (the `_metadata` of a state dict) are no part of its contents

    def append(self, items: list[Any]) -> None:
        target = self.top()
        if type(target) is not list:
            raise Refusal("its pickle appends to what is no list")
        target.extend(items)

    def add_items(self, items: list[Any]) -> None:
        target = self.top()
        if not isinstance(target, set):
            raise Refusal("its pickle adds to what is no set")
        target.update([checked_key(item) for item in items])

    def set_items(self, items: list[Any]) -> None:
        target = self.top()
        if not isinstance(target, dict) or len(items) % 2:
            raise Refusal("its pickle sets items of what is no dict")
        for place in range(0, len(items), 2):
            target[checked_key(items[place])] = items[place + 1]

    def whole(self, size: int) -> None:
        if not 0 <= size <= LONGEST_INT:
            raise Refusal(f"its pickle has a whole number of {size} bytes")
        self.push(int.from_bytes(self.take(size), "little", signed=True))

    def protocol(self) -> None:
        version = self.number("B")
        if version > 5:
            raise Refusal(f"its pickle is of protocol {version}")


def checked_key(key: Any) -> Any:
    """A key of a dict: plain, or a tuple of plain ones (hashing deep nests could not be ended)."""
    if isinstance(key, PLAIN):
        return key
    if type(key) is tuple and all(isinstance(part, PLAIN) for part in key):
        return key
    raise Refusal(f"its pickle has a key that is a {type(key).__name__}")


STEPS: dict[bytes, Callable[[_Machine], None]] = {
    b"\x80": _Machine.protocol,
    b"\x95": lambda m: (m.number("<Q"), None)[1],  # a frame's length
    b"(": lambda m: m.push(_MARK),
    b"0": lambda m: (m.pop(), None)[1],
    b"N": lambda m: m.push(None),
    b"\x88": lambda m: m.push(True),
    b"\x89": lambda m: m.push(False),
    b"K": lambda m: m.push(m.number("B")),
    b"M": lambda m: m.push(m.number("<H")),
    b"J": lambda m: m.push(m.number("<i")),
    b"\x8a": lambda m: m.whole(m.number("B")),
    b"\x8b": lambda m: m.whole(m.number("<i")),
    b"G": lambda m: m.push(m.number(">d")),
    b"X": lambda m: m.push(m.take(m.number("<I")).decode("utf-8", "surrogatepass")),
    b"\x8c": lambda m: m.push(m.take(m.number("B")).decode("utf-8", "surrogatepass")),
    b"\x8d": lambda m: m.push(m.take(m.number("<Q")).decode("utf-8", "surrogatepass")),
    b"U": lambda m: m.push(m.take(m.number("B")).decode("latin1")),
    b"T": lambda m: m.push(m.take(m.number("<I")).decode("latin1")),
    b"C": lambda m: m.push(m.take(m.number("B"))),
    b"B": lambda m: m.push(m.take(m.number("<I"))),
    b"\x8e": lambda m: m.push(m.take(m.number("<Q"))),
    b")": lambda m: m.push(()),
    b"]": lambda m: m.push([]),
    b"}": lambda m: m.push({}),
    b"\x8f": lambda m: m.push(set()),
    b"t": lambda m: m.push(tuple(m.above_mark())),
    b"l": lambda m: m.push(m.above_mark()),
    b"\x85": lambda m: m.push(m.few(1)),
    b"\x86": lambda m: m.push(m.few(2)),
    b"\x87": lambda m: m.push(m.few(3)),
    b"a": lambda m: m.append([m.pop()]),
    b"e": lambda m: m.append(m.above_mark()),
    b"s": lambda m: m.set_items(list(m.few(2))),
    b"u": lambda m: m.set_items(m.above_mark()),
    b"\x90": lambda m: m.add_items(m.above_mark()),
    b"q": lambda m: m.put(m.number("B")),
    b"r": lambda m: m.put(m.number("<I")),
    b"\x94": lambda m: m.put(len(m.memo)),
    b"h": lambda m: m.get(m.number("B")),
    b"j": lambda m: m.get(m.number("<I")),
    b"c": lambda m: m.name(m.line(), m.line()),
    b"\x93": _Machine.stack_name,
    b"Q": lambda m: m.push(m.persistent(m.pop())),
    b"R": _Machine.reduce,
    b"b": _Machine.build,
}
