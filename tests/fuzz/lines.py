"""The lines that random programs are made of: `{a}` and `{b}` are values that are there.

In: nothing. Out: tables of templates, and how often each is drawn. A template is Python that
Fulgurite and NumPy both run; its other names are arguments, constants, and state that calls share.
"""

from __future__ import annotations


def _table(text: str) -> tuple[str, ...]:
    return tuple([line.strip() for line in text.replace("\n", ";").split(";") if line.strip()])


# maps of one value
UNARY = _table(
    """
    xp.tanh({a}); xp.exp(-{a} * {a}); xp.sin({a}); {a} * {a}; -{a}; xp.sqrt({a} * {a} + 1)
    xp.log1p({a} * {a}); xp.sigmoid({a}); {a} * c0; {a} + c1; c0 - {a}; {a} * g0
    {a} / (1 + {a} * {a}); {a} ** 2; {a} * 1.0; {a} + 0; {a} - c0 * c1; c1 / ({a} * {a} + 1)
    ({a} + c0) * (c1 + 1); xp.cos({a} * c0); xp.expm1({a} * 0.25); {a} * k; {a} * 3 - {a}
    """
)
# what has corners, or whose results comparisons decide
SHARP = _table(
    """
    xp.where({a} > c0, {a}, c1); xp.abs({a}); xp.relu({a}); xp.maximum({a}, c0)
    xp.minimum({a}, {b}); xp.maximum({a}, {b}); xp.where({a} < {b}, {a} * c0, {b})
    xp.clip({a}, -1, c1 + 2); xp.sign({a}); xp.where(q, {a}, {b}); xp.where(q, c0, {a})
    xp.floor({a} * 3); xp.sort({a}, axis=-1); xp.sort({a}, axis=0); xp.round({a} * c0)
    xp.max({a}, axis=-1, keepdims=True); xp.min({a}, axis=0); xp.max({a}, axis=0)
    xp.astype({a} > c0, {a}.dtype); {a} * ({a} > 0); {a} % 1.5; {a} // 0.75; xp.max({a})
    {a} - xp.max({a}, axis=-1, keepdims=True)
    xp.take_along_axis({a}, xp.argsort({a}, axis=-1), axis=-1)
    xp.take_along_axis({a}, xp.argmax({a}, axis=-1, keepdims=True), axis=-1)
    """
)
# places that are moved
VIEWS = _table(
    """
    {a}.T; {a}[::-1]; {a}[:, ::-1]; {a}[::2]; {a}[:, ::2]; {a}[1:]; {a}[:-1]; {a}[..., 1:]
    {a}[None]; {a}[..., None]; {a}[0]; {a}[-1]; {a}[:, 0]; {a}[k]; {a}[k:]; {a}[:, :k]
    xp.flip({a}); xp.roll({a}, 1, axis=0); xp.roll({a}, k, axis=-1); {a}.reshape(-1)
    {a}.reshape({a}.shape[0], -1); {a}.reshape({a}.shape[1], {a}.shape[0]); {a}[i]; {a}[i, 0]
    xp.broadcast_to({a}, (2, *{a}.shape)); xp.expand_dims({a}, axis=0); {a}[:, None] + {a}[None]
    xp.concat([{a}, {a}]); xp.concat([{a}, {b}], axis=-1); xp.stack([{a}, {b}], axis=1)
    xp.concat([{a}[1:], {a}[:1]]); xp.tril({a}); xp.triu({a}, k=1); {a}[::-2]
    xp.repeat({a}, 2, axis=0); xp.tile({a}, (2, 1)); xp.part({a}, 0, k); {a}[..., ::-1]
    xp.moveaxis({a}, 0, -1); {a}.T.reshape(-1); {a}.T[::-1].T; {a}[{a}.shape[0] // 2:]
    xp.take({a}, i, axis=0); xp.permute_dims({a}[None], (2, 0, 1))
    xp.squeeze({a}[None], axis=0); xp.pad({a}, ((1, 0), (0, 2)))
    """
)
# sums and what is made of them
FOLDS = _table(
    """
    {a}.sum(); {a}.sum(axis=0); {a}.sum(axis=-1); {a}.sum(axis=-1, keepdims=True); {a}.mean()
    {a}.mean(axis=0); {a}.mean(axis=-1, keepdims=True); xp.softmax({a}, axis=-1)
    xp.softmax({a} * c0, axis=0); xp.logsumexp({a}, axis=-1)
    xp.var({a}, axis=-1, keepdims=True); {a} - {a}.mean(axis=-1, keepdims=True)
    ({a} - {a}.mean()) / xp.sqrt(xp.var({a}) + 1); xp.cumulative_sum({a}, axis=-1)
    xp.cumulative_sum({a}, axis=0); xp.prod({a} * 0.5, axis=-1); ({a} * {b}).sum(axis=-1)
    xp.diff({a}, axis=0); xp.std({a} * {a}, axis=0) ** 2
    """
)
# contractions
PRODUCTS = _table(
    """
    {a} @ {b}; {a} @ {a}.T; {a}.T @ {a}; {a} @ {b}.T; {a}.T @ {b}; {a} @ w
    xp.tanh({a} @ w) @ w.T; xp.einsum('ij,kj->ik', {a}, {b}); xp.einsum('ij,ij->j', {a}, {b})
    xp.softmax({a} @ {b}.T, axis=-1) @ {b}; {a} @ w * c0; (x @ w).sum(axis=-1)
    {a}[None] @ {b}.T; xp.tensordot({a}, {b}, axes=2); xp.matmul({a}, w[:, ::-1]); {a} @ b
    b @ {b}.T; xp.vecdot({a}, {b}) if {a}.shape == {b}.shape else {a}
    """
)
# maps of two values, numbers of Python and of state among them
BINARY = _table(
    """
    {a} + {b}; {a} - {b}; {a} * {b}; {a} / ({b} * {b} + 1); {a} * {b} + {a}; {a} + b; {a} * s
    {b} - {a} * c0; ({a} + {b}) * ({a} - {b}); xp.sin({a}) * xp.cos({b}); {a} + {a}
    {a} * g0 + {b} * c0; ({a} if flag else {b}); ({a} + 1 if k > 1 else {a} - 1); {a} * g1 + c0
    {a} + state.n
    """
)
# whole numbers beside floats
INTEGERS = _table(
    """
    {a} + i.sum(); {a} * (i[0] + 1); {a} + xp.astype(i, {a}.dtype).sum()
    {a} + (i * 2 - 1).max(); {a} + (i // 2)[-1]; {a} + (i % 3)[0]
    {a} * xp.astype(q, {a}.dtype).mean(); {a} + xp.cumulative_sum(i)[-1]; {a} + xp.sort(i)[0]
    {a} + xp.argmax(i); {a} * (q.any() + 0.5); {a} + xp.count_nonzero(q)
    """
)
# loops of one body
LOOPS = _table(
    """
    xp.scan(lambda h, r: (xp.tanh(h * c0 + r), (h * r).sum()), {a}[0], {a})[1]
    xp.scan(lambda h, r: (h * 0.5 + r * c1, h + r), {a}[0] * 0, {a})[1]
    xp.scan(lambda h, r: (h * 0.5 + r, h * r), {a}[0], {a}[::-1])[0]
    xp.scan(lambda h, r: (xp.sin(h + r), h), {a}[-1], {a}, reverse=True)[1]
    xp.fori_loop(0, 3, lambda j, v: v * c0 + j, {a})
    xp.fori_loop(0, k, lambda j, v: xp.tanh(v + g0) * s, {a})
    """
)
# bodies that values choose
CHOICES = _table(
    """
    xp.cond({a}.sum() > c0, lambda v: v * 2, lambda v: v - c1, {a})
    xp.cond(flag, lambda v: v * s, lambda v: v.T.T + 1, {a})
    xp.while_loop(lambda v: xp.sum(v * v) < 50, lambda v: v * 2 + 0.5, {a})
    """
)
# assignments to a value or an argument
UPDATES = _table(
    """
    {a} += 1; {a} *= c0; {a} -= {a}.mean(); {a}[0] = c0; {a}[1:] = {a}[:-1]; {a}[::2] *= 2
    {a}[:, 0] = {a}[:, -1]; {a}[-1] += {a}[0]; {a}[i] = c1; {a}[i] = {a}[::-1]; {a}[k - 1] = s
    {a}[...] = {a} * 0.5; {a}[:] = {a}[::-1]; {a}[1:, 1:] = c0; {a}[::-1] = {a} * c0
    {a} += {a}[::-1]; {a}[:, 1:] += {a}[:, :-1]; {a} += b; {a}[0, 0] = {a}.sum() * 0.125
    {a}[None, 0] = c1
    """
)
# assignments where values say so
MASKS = _table(
    """
    {a}[{a} > c0] = c1; {a}[{a} < 0] *= 0.5; {a}[q] = c0; {a}[q] = 2
    """
)
# changes of state
STATES = _table(
    """
    state.a = state.a * 0.5 + {a}.sum(); state.a += {a}.mean(); state.a[0] = c0
    state.n = (state.n + 1) % 4; state.items[0] = state.items[0] * 0.5 + state.a
    state.a[k - 1] = {a}.sum() * 0.25; state.a, state.items[0] = state.items[0], state.a
    state.items.append(state.items.pop(0)); state.items[-1][0] += 1
    """
)

Kinds = tuple[tuple[int, tuple[str, ...], str], ...]

STEPS: Kinds = (  # how often, which lines, and what that makes of a program
    (7, UNARY, ""), (8, VIEWS, ""), (5, FOLDS, ""), (4, PRODUCTS, ""), (8, BINARY, ""),
    (2, INTEGERS, "integer"), (2, LOOPS, ""), (4, SHARP, "sharp"), (1, CHOICES, "sharp"),
    (4, UPDATES, "changes"), (1, MASKS, "masks"), (3, STATES, "state"),
)  # fmt: skip
