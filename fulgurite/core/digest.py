"""Digests: one short name for some bytes, the same in every process.

In: text or bytes. Out: hexadecimal digits of BLAKE2b. The function comes from the interpreter's
own module: `hashlib` is the same one, but loads OpenSSL first, which costs import time.
"""

from __future__ import annotations

try:
    from _blake2 import blake2b
except ImportError:  # an interpreter built without it
    from hashlib import blake2b

__all__ = ["blake2b", "digest_of"]


def digest_of(data: str | bytes | memoryview, size: int = 16) -> str:
    """The digest of some bytes, or of text as UTF-8."""
    raw = data.encode() if isinstance(data, str) else data
    return blake2b(raw, digest_size=size).hexdigest()
