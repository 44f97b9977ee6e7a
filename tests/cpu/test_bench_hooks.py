# SPDX-License-Identifier: Apache-2.0
"""What `bench hooks` measures: the same calls on both sides, taken by both."""

import json
import os

import pytest

pytest.importorskip("torch", reason="the hooks in Python take torch tensors")

from dsv41topk import _runtime
from dsv41topk.bench import hooks, python_hooks


def test_figures(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(os.environ, "DSV41TOPK_BACKEND", "auto")
    target = tmp_path / "figures.json"
    assert hooks.main(["--seconds", "0.2", "--json", str(target)]) == 0
    figures = json.loads(target.read_text())
    cases = {case["case"]: case for case in figures["cases"]}
    assert set(hooks.TARGETS) <= set(cases)
    for name in ("decode_top_k", "candidate_top_k", "select_candidates"):
        # Loose: this machine may be busy. The targets are for a quiet one.
        assert cases[name]["ns"] > 0
        assert cases[name]["ratio"] > 2, cases[name]
    assert "times faster" in capsys.readouterr().out
    assert _runtime.backend() is None, "the state is as at import"


def test_a_hook_that_declines_is_not_measured(monkeypatch):
    monkeypatch.setattr(python_hooks, "select_candidates", lambda *arguments: False)
    monkeypatch.setitem(os.environ, "DSV41TOPK_BACKEND", "cpu")
    with pytest.raises(RuntimeError, match="declined a call that it must take"):
        hooks.main(["--seconds", "0.2"])
