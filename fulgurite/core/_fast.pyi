# The C extension: each name means what the Python one of that name does (`extension.compiled`).
from collections.abc import Callable
from typing import Any

SOURCE: int  # the CRC of the text that it was built from

class NodeFields: ...
class EntryFields: ...
class TensorFields: ...

def adopt(name: str, thing: object, /) -> None: ...

call: Callable[..., Any]  # `Op.__call__`
make: Callable[..., Any]
annotate: Callable[..., Any]
live_nodes: Callable[..., Any]
live_count: Callable[..., Any]
enter: Callable[..., Any]
admit: Callable[..., Any]
entries_at: Callable[..., Any]
surround: Callable[..., Any]
enable_origins: Callable[..., Any]
capture: Callable[..., Any]
note: Callable[..., Any]
derived: Callable[..., Any]
apply: Callable[..., Any]
wrap: Callable[..., Any]
replay: Callable[..., Any]
recall: Callable[..., Any]
toposort: Callable[..., Any]
unknown_order: Callable[..., Any]
order_of: Callable[..., Any]
parents_of: Callable[..., Any]
above: Callable[..., Any]
flatten: Callable[..., Any]
