"""Writing LLVM IR text: numbered values, loops with carried values, vectors of lanes.

In: calls that say what to compute. Out: the lines of one function's body. Loops are in SSA form
from the start (carried values are phis), so no optimisation pass is needed to get registers.
No op has a fast-math flag but those that join lanes (`reassoc`): other sums are written in order.
A value is a `Val`: its text, its dtype, and whether it is one number or a vector of lanes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from ....core.dtype import DType, Number, decode, encode, float32
from ....core.lazy_dataclass import dataclass
from ....core.symbolic.sym import varies
from ....graph.ir.reshape_groups import CannotLower

_TYPES = {"float32": "float", "float64": "double", "bool": "i1"}


@dataclass(frozen=True, slots=True)
class Val:
    """An SSA value: one number, or `lanes` of them."""

    text: str
    dtype: DType  # the type it computes in: small floats are float32 here
    vector: bool = False


def scalar_type(dtype: DType) -> str:
    """The LLVM type of one number in registers."""
    return _TYPES.get(dtype.name) or f"i{dtype.bits}"


def computing(dtype: DType) -> DType:
    """The dtype a value computes in."""
    return float32 if dtype.is_small_float else dtype


def literal(number: Number, dtype: DType) -> str:
    """A number as LLVM writes it."""
    if dtype.kind == "f":
        on_grid = decode(encode(number, dtype), dtype)
        return f"0x{struct.unpack('<Q', struct.pack('<d', on_grid))[0]:016X}"
    if varies(number):
        return str(number) if dtype.bits == 64 else f"{number}.i{dtype.bits}"
    return str(int(number))  # type: ignore[arg-type]


class Emitter:
    """Lines of one function, with fresh names."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.register = 4 * lanes  # bytes: lanes are those of float32 unless a caller says more
        self.has_dot4 = False  # is there an instruction for products of bytes (VNNI)?
        self.first: dict[str, int] = {}  # masks of the first lanes, where it is known how many
        self.opaque_steps = True  # else LLVM rewrites what loops count, a fifth of all its time
        self.lines: list[str] = []
        self.declared: dict[str, str] = {}
        self._names = 0
        self._block = "entry"
        self._pinned: list[dict[tuple[str, str], Val]] = [{}]  # splats, by open loop
        self.clamped: dict[str, Val] = {}  # of small whole numbers, the floats they were

    # --- names and types -------------------------------------------------------------------------

    def name(self, stem: str = "t") -> str:
        """A fresh name."""
        self._names += 1
        return f"%{stem}{self._names}"

    def type_of(self, dtype: DType, vector: bool) -> str:
        """The LLVM type of a value."""
        inner = scalar_type(dtype)
        return f"<{self.lanes} x {inner}>" if vector else inner

    def typed(self, value: Val) -> str:
        """A value with its type, as an operand."""
        return f"{self.type_of(value.dtype, value.vector)} {value.text}"

    def suffix(self, dtype: DType, vector: bool) -> str:
        """The overload suffix of an intrinsic."""
        inner = {"float": "f32", "double": "f64"}.get(scalar_type(dtype), scalar_type(dtype))
        return f"v{self.lanes}{inner}" if vector else inner

    # --- lines -----------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        """A line as it is."""
        self.lines.append("  " + text)

    def let(self, text: str) -> str:
        """A fresh name for the result of an instruction."""
        name = self.name()
        self.lines.append(f"  {name} = {text}")
        return name

    def opaque(self, value: str, kind: str = "i64") -> str:
        """The same value; LLVM stops asking how it came about, which halves what loops cost it."""
        return self.let(f"freeze {kind} {value}") if value.startswith("%") else value

    def quotient(self, a: Val, b: Val) -> Val:
        """a / b of floats.

        LLVM takes lanes for 0 where both operands' lanes are known to be 0 (of masked loads, say),
        and then leaves out a `select` of 0 there; but 0 / 0 is NaN. The fence costs no instruction.
        """
        kind = self.type_of(a.dtype, a.vector)
        found = self.let(f"fdiv {kind} {a.text}, {b.text}")
        if a.vector:
            name = f"llvm.arithmetic.fence.{self.suffix(a.dtype, True)}"
            found = self.call(kind, name, f"{kind} {found}")
        return Val(found, a.dtype, a.vector)

    def declare(self, text: str, name: str) -> None:
        """A function from outside, declared once."""
        self.declared.setdefault(name, f"declare {text}")

    def call(self, result: str, name: str, *operands: str) -> str:
        """Call a declared or intrinsic function; operands carry their types."""
        types = ", ".join(_type_part(o) for o in operands)
        self.declare(f"{result} @{name}({types})", name)
        return self.let(f"call {result} @{name}({', '.join(operands)})")

    def prefetch(self, place: str, writes: bool = False) -> None:
        """Ask for a line of memory, which need not be there."""
        name = "llvm.prefetch.p0"
        self.declare(f"void @{name}(ptr, i32, i32, i32)", name)
        self.line(f"call void @{name}(ptr {place}, i32 {int(writes)}, i32 3, i32 1)")

    def label(self, name: str) -> None:
        """Begin a block."""
        self.lines.append(f"{name}:")
        self._block = name

    def jump(self, target: str) -> None:
        """End a block."""
        self.line(f"br label %{target}")

    # --- values ----------------------------------------------------------------------------------

    def const(self, number: Number, dtype: DType, vector: bool = False) -> Val:
        """A constant."""
        text = literal(number, dtype)
        return self.splat(Val(text, dtype)) if vector else Val(text, dtype)

    def const_bits(self, bits: int, dtype: DType) -> Val:
        """A constant of exactly these bits (of its own dtype), in the type it computes in."""
        number = decode(bits, dtype)
        if isinstance(number, complex):
            raise CannotLower("complex numbers are computed by NumPy")
        target = computing(dtype)
        if target.kind == "f" and number != number:  # NaN keeps its payload as far as it fits
            return Val("0x7FF8000000000000", target)
        return Val(literal(number, target), target)

    def splat(self, value: Val) -> Val:
        """One number in every lane."""
        if value.vector:
            return value
        inner = scalar_type(value.dtype)
        if not value.text.startswith("%"):
            return Val(f"splat ({inner} {value.text})", value.dtype, True)
        kind = f"<{self.lanes} x {inner}>"
        for level in reversed(self._pinned):
            known = level.get((value.text, kind))
            if known is not None:
                return Val(known.text, value.dtype, True)
        first = self.let(f"insertelement {kind} poison, {inner} {value.text}, i64 0")
        mask = f"<{self.lanes} x i32> zeroinitializer"
        return Val(
            self.let(f"shufflevector {kind} {first}, {kind} poison, {mask}"), value.dtype, True
        )

    def ramp(self, step: int, dtype: DType) -> Val:
        """0, step, 2 * step, ... in lanes."""
        kind = scalar_type(dtype)
        if not varies(step):
            return Val(ramp(self.lanes, step, kind), dtype, True)
        each = f"{step}" if kind == "i64" else self.let(f"trunc i64 {step} to {kind}")
        all_, lanes = self.splat(Val(each, dtype)).text, ramp(self.lanes, 1, kind)
        return Val(self.let(f"mul <{self.lanes} x {kind}> {lanes}, {all_}"), dtype, True)

    def pin(self, value: Val) -> None:
        """Splat a number here, once, for every use inside the loops that are opened next."""
        if not value.vector and value.text.startswith("%"):
            self._pinned[-1][value.text, self.type_of(value.dtype, True)] = self.splat(value)

    def alike(self, *values: Val) -> list[Val]:
        """All scalars, or all vectors."""
        if any(v.vector for v in values):
            return [self.splat(v) for v in values]
        return list(values)

    # --- loops -----------------------------------------------------------------------------------

    def loop(
        self,
        start: str,
        stop: str,
        step: int | str,
        carried: Sequence[tuple[str, str]],
        body: Callable[[str, list[str]], list[str]],
        until: Callable[[list[str]], str] | None = None,
    ) -> list[str]:
        """`for i in range(start, stop, step)`; `carried` are (type, first value) pairs.

        It ends before its stop where `until` holds of what is carried.
        """
        number = self._names = self._names + 1
        head, inside, done = f"head{number}", f"body{number}", f"done{number}"
        before = self._block
        self.jump(head)
        self.label(head)
        index = self.name("i")
        names = [self.name("c") for _ in carried]
        at = len(self.lines)
        self.lines.extend([""] * (1 + len(carried)))  # the phis, once the back edge is known
        more = self.let(f"icmp slt i64 {index}, {stop}")
        if until is not None:
            more = self.let(f"and i1 {more}, {self.let(f'xor i1 {until(names)}, 1')}")
        self.line(f"br i1 {more}, label %{inside}, label %{done}")
        self.label(inside)
        self._pinned.append({})
        results = body(index, names)
        self._pinned.pop()
        following = self.let(f"add nuw nsw i64 {index}, {step}")
        if self.opaque_steps:
            following = self.opaque(following)
        latch = self._block
        self.jump(head)
        self.lines[at] = f"  {index} = phi i64 [ {start}, %{before} ], [ {following}, %{latch} ]"
        for offset, ((kind, first), name, result) in enumerate(
            zip(carried, names, results, strict=True), start=1
        ):
            self.lines[at + offset] = (
                f"  {name} = phi {kind} [ {first}, %{before} ], [ {result}, %{latch} ]"
            )
        self.label(done)
        return names

    def branch(self, condition: str, then: Callable[[], None]) -> None:
        """`if condition: then()`."""
        number = self._names = self._names + 1
        self.line(f"br i1 {condition}, label %then{number}, label %after{number}")
        self.label(f"then{number}")
        self._pinned.append({})
        then()
        self._pinned.pop()
        self.jump(f"after{number}")
        self.label(f"after{number}")

    def either(
        self, condition: str, then: Callable[[], Val | None], otherwise: Callable[[], Val | None]
    ) -> Val | None:
        """`then() if condition else otherwise()`: values of one kind, or none."""
        number = self._names = self._names + 1
        self.line(f"br i1 {condition}, label %then{number}, label %else{number}")
        found: list[tuple[Val | None, str]] = []
        for label, act in ((f"then{number}", then), (f"else{number}", otherwise)):
            self.label(label)
            self._pinned.append({})
            found.append((act(), self._block))
            self._pinned.pop()
            self.jump(f"after{number}")
        self.label(f"after{number}")
        value = found[0][0]
        if value is None:
            return None
        arms = ", ".join([f"[ {v.text}, %{block} ]" for v, block in found if v])
        kind = self.type_of(value.dtype, value.vector)
        return Val(self.let(f"phi {kind} {arms}"), value.dtype, value.vector)


def ramp(lanes: int, step: int, kind: str) -> str:
    """0, step, 2 * step, ... as a constant."""
    return "<" + ", ".join([f"{kind} {i * step}" for i in range(lanes)]) + ">"


def _type_part(operand: str) -> str:
    """The type of a typed operand: everything before the value."""
    depth = 0
    for place, letter in enumerate(operand):
        depth += letter in "<(["
        depth -= letter in ">)]"
        if letter == " " and depth == 0:
            return operand[:place]
    return operand
