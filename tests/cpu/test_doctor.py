# SPDX-License-Identifier: Apache-2.0
"""`python -m dsv41topk doctor`: it reports what is broken, and is not broken by it."""

import json
import os
import re
import subprocess
import sys
from ctypes.util import find_library

import pytest

import dsv41topk
from dsv41topk import __main__, _runtime, _selftest, doctor

BROKEN_PACKAGES = {
    "raises": "raise RuntimeError('libtorch_hip.so: undefined symbol')",
    "exits": "raise SystemExit(3)",
    "dies": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
}


def run(*arguments, path=None, **environment):
    """Run doctor in a process of its own; return exit code, stdout and stderr."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("DSV41TOPK_")} | environment
    if path is not None:
        env["PYTHONPATH"] = os.pathsep.join([str(path), *sys.path[1:]])
    command = [sys.executable, "-m", "dsv41topk", "doctor", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def healthy():
    code, out, err = run("--json", DSV41TOPK_BACKEND="cpu")
    assert err == ""
    return code, json.loads(out)


def test_the_report_names_what_was_found(healthy):
    _, found = healthy
    assert found["python"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")
    assert set(found["packages"]) == {"numpy", "torch", "vllm", "aiter", "triton"}
    assert found["packages"]["numpy"]
    assert found["checked_vllm"] == ["0.33.0"]
    assert found["switches"] == {"DSV41TOPK_BACKEND": "cpu"}
    assert found["serving"]["backend"] == "cpu"


def test_exit_code_says_whether_it_would_serve(healthy):
    code, found = healthy
    assert found["serves"] == (not found["gpus"])
    assert code == (0 if found["serves"] else 1)


def test_a_backend_that_cannot_be_had_is_not_serving():
    code, out, err = run(DSV41TOPK_BACKEND="hip")
    last = out.strip().splitlines()[-1]
    if not doctor._gpus():
        assert (code, err) == (1, "")
        assert last.startswith("NOT SERVING: the hooks are closed: ")
        assert len(last) > len("NOT SERVING: the hooks are closed: no reason was kept")


@pytest.mark.parametrize("how", BROKEN_PACKAGES)
def test_a_broken_torch_is_reported(tmp_path, how):
    for name in ("torch", "vllm", "aiter", "triton"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(BROKEN_PACKAGES[how] + "\n")
    code, out, err = run("--json", path=tmp_path, DSV41TOPK_BACKEND="cpu")
    assert err == ""
    found = json.loads(out)
    if how == "dies":
        assert code == 1
        assert "signal 9" in found["serving"]["reason"]
    else:
        assert code == (1 if found["gpus"] else 0)
        assert "torch is installed but cannot be imported" in "".join(found["known_trouble"])


def test_an_unreadable_version_file_is_passed_over(tmp_path, monkeypatch):
    (tmp_path / "version.py").mkdir()
    monkeypatch.setattr(doctor, "_package_folder", lambda name: tmp_path)
    assert doctor._torch_build() == {}


def test_torch_s_version_file_is_read(tmp_path, monkeypatch):
    lines = [
        "from typing import Optional",
        "__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip']",
        "__version__ = '2.11.0+rocm7.2'",
        "cuda: Optional[str] = None",
        "git_version = 'abc'",
        "hip: Optional[str] = '7.2.26015-fc0010cf6a'",
    ]
    (tmp_path / "version.py").write_text("\n".join(lines))
    monkeypatch.setattr(doctor, "_package_folder", lambda name: tmp_path)
    assert doctor._torch_build() == {"git_version": "abc", "hip": "7.2.26015-fc0010cf6a"}


def test_the_real_hip_runtime_is_asked_for_its_version():
    if not find_library("amdhip64"):
        pytest.skip("needs HIP's runtime (libamdhip64-dev)")
    found = doctor._hip_runtime()
    assert re.fullmatch(r"[4-9]\.\d+\.\d+", found["version"])
    assert found["devices"] == sum(gpu.startswith("gfx") for gpu in doctor._gpus())


FOUND = {
    "rocm": None,
    "serving": {"serves": True, "backend": "hip", "reason": None, "stream_fallback": False},
    "packages": {"vllm": None},
    "checked_vllm": ["0.33.0"],
    "gpus": ["gfx942"],
}


@pytest.mark.parametrize(
    ("rocm", "said"),
    [
        ("7.2.0", "ROCm 7.2.0:"),
        ("7.2.3-90", "ROCm 7.2.3-90:"),
        ("7.2.26015-fc0010cf6a", "(its patch number is not known here)"),
        ("7.2", "(its patch number is not known here)"),
        ("7.2.4", None),
        ("7.2.10-1", None),
        ("7.20.0", None),
        ("7.1.1", None),
        ("6.4.2-120", None),
        (None, None),
    ],
)
def test_rocm_versions_with_the_graph_fault(rocm, said):
    trouble = "".join(doctor._trouble({**FOUND, "rocm": rocm}))
    assert said in trouble if said else trouble == ""
    assert ("issue 279" in trouble) == (said is not None)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"stream_fallback": True}, "torch's own function is asked instead"),
        ({"stream_fallback": None}, "tests that and works round it"),
        ({"torch_error": "OSError: libamdhip64.so.7"}, "libamdhip64.so.7"),
    ],
)
def test_trouble_of_the_serving_process(change, said):
    (trouble,) = doctor._trouble({**FOUND, "serving": {**FOUND["serving"], **change}})
    assert said in trouble


def test_a_vllm_that_was_not_checked_is_named():
    (trouble,) = doctor._trouble({**FOUND, "packages": {"vllm": "0.34.1+rocm"}})
    assert "vLLM 0.34.1+rocm is not among the versions checked (0.33.0)" in trouble
    assert doctor._trouble({**FOUND, "packages": {"vllm": "0.33.0+rocm720"}}) == []


@pytest.mark.parametrize(
    ("serving", "gpus", "serves", "said"),
    [
        ({"serves": True, "backend": "hip"}, ["gfx942"], True, "the hip backend would serve"),
        ({"serves": True, "backend": "cpu"}, [], True, "the cpu backend would serve"),
        ({"serves": True, "backend": "cpu"}, ["gfx942"], False, "this machine has gfx942"),
        ({"serves": False, "backend": None, "reason": "no hipcc"}, ["gfx942"], False, "no hipcc"),
    ],
)
def test_verdict(serving, gpus, serves, said):
    verdict = doctor._verdict({"serving": serving, "gpus": gpus})
    assert verdict[0] is serves
    assert said in verdict[1]


def test_selftest_on_the_cpu():
    code, out, err = run("--json", "--selftest", DSV41TOPK_BACKEND="cpu")
    assert err == ""
    test = json.loads(out)["selftest"]
    assert test["passed"], test
    assert all(result.startswith("ok, ") for result in test["results"].values()), test
    assert len(test["results"]) == 6
    assert code == (1 if doctor._gpus() else 0)


def test_selftest_finds_a_wrong_kernel(monkeypatch, capsys):
    right = dsv41topk.compact_top_k_512

    def wrong(logits, ids, seq_lens, next_n, indices):
        right(logits, ids, seq_lens, next_n, indices)
        indices[7, 300] = indices[7, 299]

    monkeypatch.setenv("DSV41TOPK_BACKEND", "cpu")
    monkeypatch.setattr(dsv41topk, "compact_top_k_512", wrong)
    _runtime.reset()
    try:
        assert _selftest.main([]) == 1
    finally:
        monkeypatch.undo()
        _runtime.reset()
    answer = json.loads(capsys.readouterr().out)
    assert not answer["passed"]
    failed = [name for name, result in answer["results"].items() if "FAILED" in result]
    assert failed == ["compact_top_k_512"]
    assert "row 7 (end 20000)" in answer["results"]["compact_top_k_512"]


# ---- the command line ----------------------------------------------------------------------------


def test_usage(capsys):
    assert __main__.main([]) == 2
    assert "usage: python -m dsv41topk COMMAND" in capsys.readouterr().err
    assert __main__.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in __main__.COMMANDS)
    assert __main__.main(["bench"]) == 2
    assert __main__.main(["bench", "nothing"]) == 2


@pytest.mark.parametrize("command", __main__.COMMANDS)
def test_every_command_has_help(capsys, command):
    needed = {"bench cpu": "torch", "bench gpu": "torch"}.get(command)
    if needed:
        pytest.importorskip(needed, reason=f"needs {needed}")
    with pytest.raises(SystemExit) as exit_info:
        __main__.main([*command.split(), "--help"])
    assert exit_info.value.code == 0
    assert "usage: python -m dsv41topk" in capsys.readouterr().out


def test_live_counts_the_hooks_calls():
    code, out, err = run("--live", DSV41TOPK_BACKEND="cpu")
    assert code == 0, out + err
    lines = [line.split(maxsplit=1)[1] for line in out.splitlines() if line.startswith("hook ")]
    assert lines == [
        "decode_top_k: 1 taken",
        "select_candidates: 1 taken",
        "candidate_top_k: 1 taken",
    ]
