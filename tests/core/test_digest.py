"""Tests of fulgurite/core/digest.py."""

from hashlib import blake2b

from fulgurite.core.digest import digest_of


def test_a_digest_is_that_of_hashlib() -> None:
    for data in (b"", b"fulgurite", bytes(range(256)) * 9):
        assert digest_of(data) == blake2b(data, digest_size=16).hexdigest()
        assert digest_of(data, 6) == blake2b(data, digest_size=6).hexdigest()
    assert digest_of("größe") == digest_of("größe".encode())
