"""Kinds of kernels: a text wherever one is shown or kept, traits wherever a pass decides."""

import json

import pytest

from fulgurite.graph.ir.kernel_kind import KernelKind, Trait


@pytest.mark.parametrize("kind", KernelKind)
def test_a_kind_is_its_text_in_keys_and_files(kind: KernelKind) -> None:
    assert kind == kind.value and hash(kind) == hash(kind.value)
    assert f"{kind}" == kind.value and repr((kind,)) == repr((kind.value,))
    assert KernelKind(json.loads(json.dumps(kind))) is kind


def test_a_kind_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match="fancy"):
        KernelKind("fancy")


def test_every_kind_says_its_traits() -> None:
    assert all(isinstance(kind.traits, Trait) for kind in KernelKind)
    assert [kind for kind in KernelKind if kind.is_control] == ["loop", "cond"]
    assert [kind for kind in KernelKind if not kind.has_code] == ["host", "loop", "cond", "copy"]
    assert [kind for kind in KernelKind if kind.is_alternative] == ["fold", "library"]
    assert not any(kind.has_code and kind.is_control for kind in KernelKind)
