"""Tests of models of torch: collected where torch is installed, as in `make test-torch`."""

from __future__ import annotations

import importlib.util

import pytest

HAS_TORCH = importlib.util.find_spec("torch") is not None
collect_ignore_glob = [] if HAS_TORCH else ["test_*.py", "*/test_*.py"]


@pytest.fixture(autouse=True, scope="session")
def torchvision_loads() -> None:
    """transformers imports torchvision, whose library may be for another build of torch."""
    if importlib.util.find_spec("torchvision") is not None:
        from fulgurite.torch.conformance.models import import_torchvision

        import_torchvision()


@pytest.fixture(autouse=True)
def fresh_torch() -> None:
    """Every test begins with nothing compiled, a seed and empty counts."""
    import torch

    from fulgurite.torch import report

    torch._dynamo.reset()
    torch.manual_seed(0)
    report().reset()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """torch's own warnings are torch's affair; ours are errors as everywhere."""
    for item in items:
        if "tests/torch" in str(item.path).replace("\\", "/"):
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::UserWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::FutureWarning"))
