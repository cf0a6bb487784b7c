"""The benchmark harness, with systems that are made up: who is asked when, and what is believed."""

import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import harness
from bench.models import GPT, Workload, normal
from bench.report import Report, Rows, last_result, machine
from bench.systems import numpy_ops, our_ops
from bench.usage import CpuClock, memory

pytestmark = pytest.mark.device("reference")

SCRIPT = """
import os, sys, time
from bench.harness import Work, run_figures, run_works

LOG = {log!r}

def note(text):
    with open(LOG, "a") as file:
        file.write(text + "\\n")

def system(name, answer=42, problem=None):
    def load():
        def prepare(work):
            def call():
                note(f"{{name}} {{work}} {{os.getpid()}}")
                if problem is not None:
                    problem()
                return answer
            def check(result):
                if result != 42:
                    raise ValueError(f"{{result}} is wrong")
            return Work(call, check)
        return prepare
    return load

def absent():
    import no_such_module

WORKS = {{
    "ours": system("ours"), "a": system("a"), "b": system("b"), "wrong": system("wrong", 41),
    "ends": system("ends", problem=lambda: os._exit(3)),
    "loud": system("loud", problem=lambda: print("noise")),
    "hangs": system("hangs", problem=lambda: time.sleep(60)), "absent": absent,
}}

def first():
    note(f"first {{sorted(os.listdir(os.environ['HOME']))}}")
    open(os.environ["HOME"] + "/cache", "w").close()
    with open(LOG) as file:
        return {{"falls": 10.0 - file.read().count("first"), "stays": 1.0}}

def second():
    return {{"found": float(os.path.exists(os.environ["HOME"] + "/cache")), "unknown": 7.0}}

FIGURES = {{"ours": [first, second], "peer": [absent]}}

if __name__ == "__main__":
    if sys.argv[2] in WORKS and "figures" not in __file__:
        run_works(None, __file__, WORKS, {{"w": "a work", "v": "another"}}, {{}})
    else:
        run_figures(None, __file__, FIGURES, {{"falls": 1.0, "stays": None, "found": None}})
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the scripts of made-up systems; results go there too."""
    monkeypatch.setattr(harness, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(harness, "machine", lambda peers, threads: dict.fromkeys(FACTS, "x"))
    for name in ("works.py", "figures.py"):
        (tmp_path / name).write_text(SCRIPT.format(log=str(tmp_path / "log")))
    return tmp_path


FACTS = ("date", "cpu", "cores", "threads", "vectors", "python", "peers", "load", "commit")
NAMES = ("ours", "a", "b", "wrong", "ends", "loud", "hangs", "absent")


def works(folder: Path, systems: str, *more: str, only: str = "w") -> Rows:
    loads: dict[str, Any] = dict.fromkeys(NAMES)
    arguments = ["--systems", systems, "--only", only, "--calls", "2", "--limit", "20", *more]
    titles = {"w": "a work", "v": "another"}
    return harness.run_works(None, str(folder / "works.py"), loads, titles, {}, arguments)


def figures(folder: Path, *more: str) -> Rows:
    steps: dict[str, Any] = {"ours": [None, None], "peer": [None]}
    goals = {"falls": 1.0, "stays": None, "found": None}
    return harness.run_figures(None, str(folder / "figures.py"), steps, goals, [*more])


def merged(names: list[str]) -> list[str]:
    """Names without those that repeat the one before."""
    return [name for i, name in enumerate(names) if i == 0 or name != names[i - 1]]


def turns(folder: Path) -> list[str]:
    """Who was called, calls in a row counted once."""
    return merged([line.split()[0] for line in (folder / "log").read_text().splitlines()])


def test_systems_take_turns_and_another_one_is_first_in_each_round(fake: Path) -> None:
    works(fake, "ours,a,b", "--rounds", "3")
    cold = ["ours", "a", "b"]
    rounds = ["ours", "a", "b", "a", "b", "ours", "b", "ours", "a"]
    assert turns(fake) == merged(cold + rounds)


def test_every_system_has_a_fresh_process_for_every_work(fake: Path) -> None:
    works(fake, "ours,a", "--rounds", "2", only="w,v")
    lines = {tuple(line.split()) for line in (fake / "log").read_text().splitlines()}
    assert {line[:2] for line in lines} == {(s, w) for s in ("ours", "a") for w in "wv"}
    assert len({pid for _, _, pid in lines}) == len(lines) == 4


def test_a_cell_has_warm_and_cold_times_and_memory(fake: Path) -> None:
    cell = works(fake, "ours", "--rounds", "1")["w"]["ours"]
    assert set(cell) == {"median", "best", "cold_s", "cold_cpu_s", "peak_mb"}
    assert 0 < cell["best"] <= cell["median"] and cell["cold_s"] > 0


def test_a_wrong_answer_is_an_error_and_never_a_time(
    fake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = works(fake, "ours,wrong", "--rounds", "1")["w"]
    assert cells["wrong"]["error"].startswith("ValueError: 41 is wrong")
    assert "median" not in cells["wrong"] and "median" in cells["ours"]
    assert turns(fake).count("wrong") == 1
    shown = capsys.readouterr().out
    assert "| error |" in shown and "- wrong: ValueError: 41 is wrong" in shown


def test_systems_that_end_hang_or_are_absent_do_not_stop_the_others(fake: Path) -> None:
    cells = works(fake, "ends,hangs,absent,ours", "--rounds", "1", "--limit", "2")["w"]
    assert cells["ends"]["error"] == "ended with 3: silently"
    assert cells["hangs"]["error"] == "over 2 s"
    assert "no_such_module" in cells["absent"]["error"]
    assert "median" in cells["ours"]


def test_what_a_system_prints_does_not_reach_the_answers(fake: Path) -> None:
    assert "median" in works(fake, "loud", "--rounds", "1")["w"]["loud"]


def test_figures_are_the_least_of_all_rounds(fake: Path) -> None:
    rows = figures(fake, "--rounds", "3", "--systems", "ours")
    assert rows["falls"]["ours"]["best"] == 7 and rows["stays"]["ours"]["best"] == 1
    assert "unknown" not in rows


def test_the_steps_of_a_system_share_caches_which_every_round_finds_empty(fake: Path) -> None:
    rows = figures(fake, "--rounds", "2", "--systems", "ours")
    assert rows["found"]["ours"]["best"] == 1
    assert (fake / "log").read_text().splitlines() == ["first ['stderr']"] * 2


def test_a_system_that_cannot_be_measured_is_an_error_in_its_rows(fake: Path) -> None:
    rows = figures(fake, "--rounds", "1")
    assert "no_such_module" in rows["stays"]["peer"]["error"]
    assert rows["stays"]["ours"] == {"best": 1.0}


def test_saved_results_are_what_the_next_run_is_compared_with(
    fake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures(fake, "--rounds", "1", "--save")
    assert "x" not in capsys.readouterr().out.splitlines()[-5].split("|")[-2]
    saved = fake / "results" / "figures.json"
    found = json.loads(saved.read_text())
    assert found["rows"]["stays"]["ours"] == {"best": 1.0}
    assert (fake / "results" / "figures.md").read_text().startswith("# bench/figures.py")
    found["rows"]["stays"]["ours"]["best"] = 0.5
    saved.write_text(json.dumps(found))
    figures(fake, "--rounds", "1")
    line = next(s for s in capsys.readouterr().out.splitlines() if s.startswith("| stays"))
    assert line.endswith("| x2.00 |")


def test_only_whole_results_are_saved(fake: Path) -> None:
    with pytest.raises(SystemExit):
        figures(fake, "--save", "--systems", "ours")
    assert not (fake / "results").exists()


def test_names_that_do_not_exist_are_refused(fake: Path) -> None:
    for arguments in (["--systems", "nobody"], ["--only", "nothing"]):
        with pytest.raises(SystemExit):
            figures(fake, *arguments)


def test_the_last_result_is_the_committed_one(tmp_path: Path) -> None:
    path = tmp_path / "cpu.json"
    assert last_result(path) is None
    path.write_text('{"from": "the file"}')
    assert last_result(path) == {"from": "the file"}
    who = ("-c", "user.name=n", "-c", "user.email=e@example.org")
    for command in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "m"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True, capture_output=True)
    path.write_text('{"from": "a later run"}')
    assert last_result(path) == {"from": "the file"}


def test_the_ratio_is_to_the_best_peer_and_not_to_ourselves() -> None:
    cells: dict[str, dict[str, Any]] = {
        "ours": {"median": 3.0}, "ours eager": {"median": 1.0}, "a": {"median": 4.0},
        "b": {"median": 6.0}, "c": {"error": "absent"},
    }  # fmt: skip
    facts = dict.fromkeys(FACTS, "x")
    report = Report("r", facts, {"w": cells}, {}, {}, "median")
    assert report.ratio("w") == 0.75
    assert report.systems == ["ours", "ours eager", "a", "b", "c"]
    assert report.since("w", {"rows": {"w": {"ours": {"median": 2.0}}}}) == 1.5
    assert report.since("w", None) is None


def test_the_machine_is_described() -> None:
    facts = machine(sys.executable, 2)
    assert set(facts) == set(FACTS) and facts["threads"] == "2"
    assert f"numpy {np.__version__}" in facts["peers"]


def test_cpu_time_includes_helpers_that_ended_and_that_live() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    clock = CpuClock()
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", burn], stdin=pipe, stdout=pipe) as helper:
        assert helper.stdout is not None
        helper.stdout.readline()
        alive = clock.seconds()
        helper.communicate(b"\n")
    assert alive > 0.25
    assert clock.seconds() > 0.25


def test_memory_is_seen() -> None:
    gc.collect()  # of what other tests left
    before = memory("VmRSS")
    block = np.ones(200_000_000, np.uint8)
    assert memory("VmRSS") - before > 100
    del block


def test_a_workload_refuses_wrong_answers() -> None:
    workload = Workload("double", normal(x=(3, 4)), lambda o, p: p["x"] * 2)
    right = workload.inputs()["x"] * np.float32(2)
    workload.check(right)
    with pytest.raises(ValueError, match="shape"):
        workload.check(right[0])
    for wrong in (right + np.float32(0.01), right * np.float32(np.nan)):
        with pytest.raises(ValueError, match="wrong by"):
            workload.check(wrong)


def test_numpy_and_we_compute_the_same_model() -> None:
    import fulgurite as fg

    model = GPT(layers=2, width=8, heads=2, length=5, batch=2, vocabulary=11)
    arrays, tokens = model.initial(), model.tokens()[0]
    want = model.logits(numpy_ops(), {k: v.astype(np.float64) for k, v in arrays.items()}, tokens)
    got = model.logits(our_ops(), {k: fg.Tensor(v) for k, v in arrays.items()}, fg.Tensor(tokens))
    np.testing.assert_allclose(got.numpy(), want, atol=1e-5)


def test_a_plan_and_its_memory_compute_what_the_tensor_is() -> None:
    import fulgurite as fg
    from bench.systems import plan_of

    a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    plan, inputs = plan_of(fg.schedule(fg.Tensor(a) @ fg.Tensor(b)))
    (found,) = plan.run(inputs)
    np.testing.assert_allclose(found.array.reshape(2, 4), a @ b)
