"""Tests of codegen/cpu/timed_driver.py: the driver's text with a clock in it."""

import pytest

from fulgurite.codegen.cpu.driver import driver_text
from fulgurite.codegen.cpu.driver_pool import pool_text
from fulgurite.codegen.cpu.timed_driver import timed_driver_text

pytestmark = pytest.mark.device("none")


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
@pytest.mark.parametrize(("system", "clock"), [("linux", 1), ("darwin", 8)])
def test_the_driver_with_a_clock_is_the_driver_and_has_names_of_its_own(
    arch: str, system: str, clock: int
) -> None:
    plain, timed = driver_text() + pool_text(arch, system), timed_driver_text(arch, system)
    assert f"@clock_gettime(i32 {clock}," in timed and "clock_gettime" not in plain
    assert "@fulgurite_timed_call" in timed and "@fulgurite_call" not in timed
    assert "$" not in timed
    lines = set(timed.replace("fulgurite_timed_", "fulgurite_").splitlines())
    lost = [line for line in plain.splitlines() if line not in lines]
    assert len(lost) <= 5  # a few places take one argument more
