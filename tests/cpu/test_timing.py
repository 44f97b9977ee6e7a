# SPDX-License-Identifier: Apache-2.0
"""The stopwatch and the table of the benches, and one bench from end to end."""

import json
import math

import pytest

from dsv41topk.bench import timing


def test_sample_is_the_median_and_its_tenths():
    sample = timing.Sample.of([float(i) for i in range(100, -1, -1)])
    assert (sample.median, sample.low, sample.high, sample.repeats) == (50.0, 10.0, 90.0, 101)


def test_calls_take_turns():
    order = []
    calls = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}
    samples = timing.interleaved(calls, seconds=0, least=2)
    assert "".join(order) == ("a" * 6 + "b" * 6) * 2
    assert {name: sample.repeats for name, sample in samples.items()} == {"a": 10, "b": 10}


def test_geometric_mean():
    assert timing.geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    assert math.isnan(timing.geometric_mean([]))


def test_table_aligns_text_left_and_numbers_right():
    lines = timing.table(["name", "us"], [("a", 1), ("long name", 22.5)]).splitlines()
    assert lines == ["name         us", "---------  ----", "a             1", "long name  22.5"]


def test_bench_cpu(tmp_path):
    """Every call is checked and timed, and the JSON holds what the table shows."""
    pytest.importorskip("torch", reason="needs torch")
    pytest.importorskip("dsv41topk.kernels", reason="needs the extension, built")
    from dsv41topk.bench import cpu

    path = tmp_path / "figures.json"
    assert cpu.main(["--quick", "--seconds", "0", "--json", str(path)]) == 0
    figures = json.loads(path.read_text())["figures"]
    calls = {figure["call"] for figure in figures}
    assert calls == {
        "top_k_per_row_decode_512",
        "candidate_top_k_512",
        "compact_top_k_512",
        "candidate_blocks",
        "candidate_logits",
    }
    assert all(figure["ratio"] > 0 for figure in figures)
