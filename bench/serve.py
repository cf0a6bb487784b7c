"""Throughput of `fulgurite serve`: many clients at once beside one alone, on a tiny model.

Run `python bench/serve.py [--clients 32] [--seconds 4] [--rounds 3] [--slots N]`. The server is a
process of its own, clients another one (plain sockets on one event loop, so that they take little
of the machine). One client and many take turns; printed are tokens of a second and of a second of
the server's processor time, the ratio of the two, tokens of a step, and the time to first tokens.
Requests are those of the tests' soak: prompts of 1 to 150 tokens, 1 to 23 tokens more, half of them
streams; with `--plain` none of them leaves and none is bad.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

PATH = "/v1/completions"


def bodies() -> list[dict[str, Any]]:
    """What clients ask for, as the soak of tests/serve has it."""
    chance, found = random.Random(5), []
    for number in range(24):
        prompt = [chance.randrange(3, 290) for _ in range(chance.choice([1, 3, 17, 40, 150]))]
        if number % 3 == 0:
            prompt = list(range(20, 60)) + prompt[:20]
        body = {"prompt": prompt, "max_tokens": chance.randrange(1, 24), "seed": number}
        found.append(body | {"temperature": chance.choice([0, 0.9]), "ignore_eos": True})
    return found


class Client:
    """One connection that is kept open."""

    def __init__(self, port: int) -> None:
        self.port, self.reader, self.writer = port, None, None  # type: ignore[var-annotated]

    async def ask(self, path: str, body: Any, leaves: bool = False) -> tuple[float, bytes]:
        """Seconds to the first bytes of the answer's body, and all of it."""
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        raw = b"" if body is None else json.dumps(body).encode()
        method = b"GET" if body is None else b"POST"
        began = time.monotonic()
        self.writer.write(b"%s %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s"
                          % (method, path.encode(), len(raw), raw))  # fmt: skip
        head = await self.reader.readuntil(b"\r\n\r\n")
        found = re.search(rb"content-length: (\d+)", head)
        if found is not None:
            data = await self.reader.readexactly(int(found[1]))
            return time.monotonic() - began, data
        first, parts = 0.0, []
        while True:
            size = int(await self.reader.readline(), 16)
            data = await self.reader.readexactly(size + 2)
            first = first or time.monotonic() - began
            parts.append(data[:-2])
            if leaves:
                self.close()
                break
            if not size:
                break
        return first, b"".join(parts)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
            self.writer = None


def text_of(data: bytes) -> str:
    """The text of an answer, whole or a stream."""
    if data.startswith(b"data: "):
        events = [one[6:] for one in data.split(b"\n\n") if one]
        assert events.pop() == b"[DONE]", data
        return "".join(json.loads(one)["choices"][0]["text"] for one in events)
    found: str = json.loads(data)["choices"][0]["text"]
    return found


async def work(
    port: int, seed: int, ends: float, texts: list[str] | None, is_plain: bool, firsts: list[float]
) -> int:
    """One client until a time; how many requests it made."""
    chance, client, asked, count = random.Random(seed), Client(port), bodies(), 0
    while time.monotonic() < ends:
        number, kind = chance.randrange(len(asked)), chance.randrange(2 if is_plain else 8)
        body = asked[number]
        if not is_plain and kind == 6:
            assert b"error" in (await client.ask(PATH, body | {"temperature": "hot"}))[1]
        elif not is_plain and kind == 7:
            await client.ask(PATH, body | {"max_tokens": 500, "stream": True}, leaves=True)
        else:
            first, data = await client.ask(PATH, body | {"stream": kind % 2 == 0})
            firsts.append(first)
            assert texts is None or text_of(data) == texts[number], data
        count += 1
    client.close()
    return count


async def numbers(port: int) -> dict[str, float]:
    """The server's own counters."""
    client = Client(port)
    text = (await client.ask("/metrics", None))[1].decode()
    client.close()
    lines = (line.split() for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in lines}


def processor_seconds(pid: int) -> float:
    """Processor time of a process so far."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(port: int, pid: int, options: argparse.Namespace) -> None:
    """One client and many, in turns."""
    alone = Client(port)
    texts = [text_of((await alone.ask(PATH, body))[1]) for body in bodies()]
    alone.close()
    rates: dict[int, list[tuple[float, float]]] = {1: [], options.clients: []}
    for turn in range(options.rounds + 1):  # the first one warms
        for count, kept in rates.items():
            firsts: list[float] = []
            before, busy, began = await numbers(port), processor_seconds(pid), time.monotonic()
            ends = began + (options.seconds if turn else 2)
            asked = await asyncio.gather(
                *[work(port, 100 * turn + n, ends, texts, options.plain, firsts)
                  for n in range(count)])  # fmt: skip
            after, wall = await numbers(port), time.monotonic() - began
            busy = processor_seconds(pid) - busy
            tokens, steps = (
                after[name] - before[name]
                for name in ("fulgurite_generated_tokens_total", "fulgurite_steps_total")
            )
            firsts.sort()
            late = firsts[int(len(firsts) * 0.99)] if firsts else 0
            if turn:
                kept.append((tokens / wall, tokens / busy))
            print(f"{count:3} clients: {tokens / wall:7.0f} tokens/s, {tokens / busy:7.0f} of a "
                  f"processor second ({busy / wall:4.2f} busy), {tokens / max(steps, 1):5.2f} of a "
                  f"step, {sum(asked) / wall:6.1f} requests/s, 99 % of first ones within "
                  f"{late * 1e3:6.1f} ms", flush=True)  # fmt: skip
    one, many = (
        [sorted(column)[len(column) // 2] for column in zip(*kept, strict=True)]
        for kept in rates.values()
    )
    print(f"{options.clients} clients over one: {many[0] / one[0]:.2f} by the clock, "
          f"{many[1] / one[1]:.2f} by processor time (medians)")  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slots", type=int)
    parser.add_argument("--plain", action="store_true", help="no bad requests, nobody leaves")
    parser.add_argument("--port", type=int, help="of a server that runs already, with --pid")
    parser.add_argument("--pid", type=int)
    options = parser.parse_args()
    if options.port:
        asyncio.run(measure(options.port, options.pid, options))
        sys.exit()
    from tests.models.samples import gguf_of

    with tempfile.TemporaryDirectory() as folder:
        path = gguf_of(Path(folder) / "tiny.gguf", **{"llama.block_count": 1})
        more = [] if options.slots is None else ["--slots", str(options.slots)]
        server = subprocess.Popen(
            [sys.executable, "-m", "fulgurite", "serve", str(path), "--port", "0", *more],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline().split(":")[2].split("/")[0])
            asyncio.run(measure(port, server.pid, options))
        finally:
            server.terminate()
            server.wait()
