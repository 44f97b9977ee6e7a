# SPDX-License-Identifier: Apache-2.0
"""The parts of `bench gpu` that need no GPU: what it measures, and what it takes for right."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
gpu = pytest.importorskip("dsv41topk.bench.gpu", reason="needs the extension, built")


def test_every_shape_once():
    shapes = list(gpu.shapes(quick=False))
    assert len(set(shapes)) == len(shapes)
    dense = {s for s in shapes if s.call == "top_k_per_row_decode_512"}
    assert {(s.rows, s.live) for s in dense} == {(r, n) for r in gpu.ROWS for n in gpu.LENGTHS}
    assert {s.width for s in dense} == {*gpu.LENGTHS, gpu.WIDE}
    assert {s.values for s in dense} == {"normal", "masked"}
    assert set(gpu.shapes(quick=True)) <= set(shapes)


def test_right_columns_are_the_lowest_of_ties():
    rows = torch.zeros(1, 2000)
    rows[0, [1999, 7]] = 1.0
    assert gpu._best_columns(rows).tolist() == [[*range(511), 1999]]


def test_a_peer_may_choose_other_ties_in_any_order():
    rows = (torch.randn(2, 5000, generator=torch.manual_seed(0)) * 2).round() / 2
    right = gpu._best_columns(rows)
    other = torch.topk(rows, 512, sorted=False).indices.int()
    assert gpu._as_good(rows, other.flip(1), right)
    assert not torch.equal(other, right)


@pytest.mark.parametrize("wrong", [-1, 5000, "worse", "twice"])
def test_a_peer_that_is_wrong(wrong):
    rows = torch.randn(2, 5000, generator=torch.manual_seed(0))
    right = gpu._best_columns(rows)
    got = right.clone()
    got[1, 300] = {"worse": rows[1].argmin(), "twice": got[1, 301]}.get(wrong, wrong)
    assert not gpu._as_good(rows, got, right)


def test_ratio_is_to_the_best_peer_that_was_right():
    shape = gpu.Shape("top_k_per_row_decode_512", 6, 2048, 2048, "normal")
    figure = gpu.Figure(shape, 3.0, {"torch": 12.0, "decode": 4.0, "cooperative": None})
    assert figure.ratio == pytest.approx(0.75)
    assert gpu.Figure(shape, 3.0, {"decode": None}).ratio is None
