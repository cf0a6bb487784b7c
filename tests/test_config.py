"""Tests of fulgurite/config.py: one typed table, for a block or a process."""

import pytest

import fulgurite as fg
from fulgurite.config import current, from_environment
from fulgurite.errors import ArgumentError
from fulgurite.runtime.device import DeviceError
from tests.threads import together

pytestmark = pytest.mark.device("none")


def test_an_option_holds_for_its_block_only() -> None:
    before = current().verify
    with fg.config(verify=not before):
        assert current().verify is not before
    assert current().verify is before


def test_blocks_nest_and_survive_errors() -> None:
    with pytest.raises(RuntimeError), fg.config(schedule_cache=3), fg.config(verify=True):
        assert current().schedule_cache == 3 and current().verify
        raise RuntimeError
    assert current().schedule_cache != 3


def test_an_option_of_one_thread_is_not_another_threads() -> None:
    with fg.config(schedule_cache=7):
        assert together(2, lambda _: current().schedule_cache) == [1024, 1024]


def test_the_environment_sets_the_defaults() -> None:
    options = from_environment({"FULGURITE_VERIFY": "1", "FULGURITE_SCHEDULE_CACHE": "5"})
    assert options.verify and options.schedule_cache == 5


@pytest.mark.parametrize(
    ("change", "says"),
    [({"colour": 1}, "no option 'colour'"), ({"verify": 3}, "verify is 3"),
     ({"schedule_cache": "many"}, "schedule_cache is 'many'")],
)  # fmt: skip
def test_a_wrong_option_is_a_clear_error(change: dict[str, object], says: str) -> None:
    with pytest.raises(ArgumentError, match=says), fg.config(**change):
        pass


def test_a_wrong_environment_names_the_variable() -> None:
    with pytest.raises(ArgumentError, match="FULGURITE_VERIFY"):
        from_environment({"FULGURITE_VERIFY": "perhaps"})


def test_only_options_that_change_plans_are_in_the_key() -> None:
    with fg.config(verify=True, poison=True):
        key = current().key
    assert key == current().key
    with fg.config(simplify=False):
        assert current().key != key


def test_an_unknown_device_is_an_error_at_once() -> None:
    with pytest.raises(DeviceError, match=r"one of .*cpu.*reference") as caught:
        fg.config(device="nowhere")
    assert "no device 'nowhere'" in caught.value.what and __file__ in caught.value.where


@pytest.mark.parametrize("name", ["schedule_cache", "cache_limit"])
def test_a_cache_has_no_negative_size(name: str) -> None:
    with pytest.raises(ArgumentError, match=f"{name} is -1"):
        fg.config(**{name: -1})
    with pytest.raises(ArgumentError, match="FULGURITE"):
        from_environment({f"FULGURITE_{name.upper()}": "-1"})
    with fg.config(**{name: 0}):
        assert (fg.Tensor([1.0]) + 1).tolist() == [2.0]
