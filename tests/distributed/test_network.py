"""A network that is cut between two hosts: network namespaces with one cable between them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fulgurite.cli.launch import find_mpiexec
from tests.distributed.launching import JOBS, ROOT, needs_mpi

pytestmark = [pytest.mark.device("none"), pytest.mark.slow, needs_mpi]
HOSTS = {"10.77.0.1": f"fulgurite-a-{os.getpid()}", "10.77.0.2": f"fulgurite-b-{os.getpid()}"}
CABLE = "fgcable"


def ip(*words: str) -> None:
    """Run `ip`, quietly."""
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=10)


def wait_for_link(name: str) -> None:
    """Wait until a host's end of the cable is up."""
    for _ in range(50):
        shown = subprocess.run(
            ["ip", "-n", name, "link", "show", CABLE], capture_output=True, text=True, timeout=10
        )
        if "state UP" in shown.stdout:
            return
        time.sleep(0.1)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Path]:
    """Two namespaces with a cable; what starts a command in one of them, as ssh would."""
    if shutil.which("ip") is None:
        pytest.skip("there is no `ip` to make network namespaces with")
    first, second = HOSTS.values()
    try:
        try:
            for name in HOSTS.values():
                ip("netns", "add", name)
            ip("link", "add", CABLE, "netns", first, "type", "veth", "peer", "name", CABLE,
               "netns", second)  # fmt: skip
            for address, name in HOSTS.items():
                ip("-n", name, "addr", "add", f"{address}/24", "dev", CABLE)
                ip("-n", name, "link", "set", "lo", "up")
                ip("-n", name, "link", "set", CABLE, "up")
            for name in HOSTS.values():
                wait_for_link(name)
        except subprocess.CalledProcessError as refused:
            pytest.skip(f"network namespaces are refused here: {refused.stderr.decode().strip()}")
        cases = " ".join([f"{address}) space={name};;" for address, name in HOSTS.items()])
        script = tmp_path / "remote"
        script.write_text(
            '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nhost=$1; shift\n'
            f'case $host in {cases} esac\nexec ip netns exec $space sh -c "$*"\n'
        )
        script.chmod(0o755)
        yield script
    finally:
        for name in HOSTS.values():
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=10)


def test_a_cut_network_ends_the_job_and_names_who_does_not_answer(
    hosts: Path, tmp_path: Path
) -> None:
    running = tmp_path / "running"
    first = next(iter(HOSTS.values()))
    mpiexec = find_mpiexec()
    assert mpiexec is not None
    command = [
        "ip", "netns", "exec", first, mpiexec, "-iface", CABLE, "-launcher", "ssh",
        "-launcher-exec", str(hosts), "-hosts", ",".join(HOSTS), "-ppn", "1", "-n", "2",
        sys.executable, "-m", "fulgurite.runtime.distributed.rank", str(JOBS / "cut.py"),
        str(running),
    ]  # fmt: skip
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "FULGURITE_TIMEOUT": "3", "UCX_TLS": "tcp,self",
        "UCX_NET_DEVICES": CABLE, "PYTHONWARNINGS": "ignore",
    }  # fmt: skip
    job = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        deadline = time.monotonic() + 60
        while not running.exists() and job.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        if job.poll() is not None or not running.exists():
            job.kill()
            pytest.skip(f"MPI does not start in network namespaces here: {job.communicate()[0]}")
        ip("-n", first, "link", "set", CABLE, "down")
        text, _ = job.communicate(timeout=120)  # it ends by itself
        assert job.returncode and "does not answer: killed, stopped or cut off" in text, text
    finally:
        job.kill()
        job.wait(10)
