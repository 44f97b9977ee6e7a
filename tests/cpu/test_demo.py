# SPDX-License-Identifier: Apache-2.0
"""`python -m dsv41topk demo`: it ends well on what is right, and finds what is wrong."""

import inputs
import numpy as np
import pytest

import dsv41topk
from dsv41topk import __main__, _runtime, demo, record, reference, step


@pytest.fixture(autouse=True)
def _fresh_state(monkeypatch):
    """Let each demo build anew, and undo what it sets."""
    monkeypatch.setenv("DSV41TOPK_BACKEND", "cpu")
    _runtime.reset()
    yield
    monkeypatch.undo()
    _runtime.reset()


def run(capsys, *arguments):
    """Run the demo; return its exit code, the lines of stdout, and stderr."""
    code = __main__.main(["demo", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out.strip().splitlines(), err


@pytest.mark.parametrize(
    "arguments",
    [
        ("--context", 9_001),
        ("--context", 3_000, "--rows", 1),
        ("--context", 2_500, "--rows", 12),
        ("--context", 700, "--rows", 4, "--next-n", 2, "--seed", 7),
        ("--context", 300, "--rows", 2),  # every row is short
        ("--context", 1, "--rows", 1),
    ],
    ids=str,
)
def test_every_layer_matches(capsys, arguments):
    code, out, err = run(capsys, *arguments)
    assert (code, err) == (0, "")
    assert out[-1] == "all layers match the oracle"
    assert [line.split()[0] for line in out[2:-2]] == [str(layer) for layer in demo.LAYERS]


def test_the_step_from_real_text_replays(capsys):
    code, out, err = run(capsys, "--replay", inputs.STEP_8K)
    assert (code, err) == (0, "")
    assert out[-1] == "all layers match the oracle"
    assert "of the recorded" in out[2]


@pytest.mark.parametrize("name", ["decode_top_k", "select_candidates", "candidate_logits_top_k"])
def test_a_wrong_entry_is_found(capsys, monkeypatch, name):
    right = getattr(dsv41topk, name)
    position = {"decode_top_k": 3, "select_candidates": 4, "candidate_logits_top_k": 7}[name]

    def wrong(*arguments):
        taken = right(*arguments)
        arguments[position][-1, 40] += 1
        return taken

    monkeypatch.setattr(dsv41topk, name, wrong)
    code, out, err = run(capsys, "--context", 2_000)
    assert code == 1
    assert "all layers match the oracle" not in out
    assert f"{name}: 1 of" in err
    assert "is not the oracle's" in err or "are not the oracle's" in err


def test_a_wrong_logit_is_found(capsys, monkeypatch):
    right = dsv41topk.candidate_logits

    def wrong(*arguments):
        right(*arguments)
        arguments[8][0, 5] *= 1 + 1e-3

    monkeypatch.setattr(dsv41topk, "candidate_logits", wrong)
    code, _, err = run(capsys, "--context", 2_000)
    assert code == 1
    assert "layer 2, logits: off by" in err


def test_a_hook_that_declines_is_found(capsys, monkeypatch):
    monkeypatch.setattr(dsv41topk, "select_candidates", lambda *arguments: False)
    code, _, err = run(capsys, "--context", 2_000)
    assert code == 1
    assert "select_candidates declined the call" in err


def test_synthetic_logits_look_like_the_model_s():
    rng = np.random.default_rng(3)
    layer = demo.synthetic_layer(rng, 1, 2, 131_072)
    logits, _ = demo.dense_logits(layer, 131_072)
    for row in logits:
        assert np.sort(row)[-reference.TOP_K] == pytest.approx(-0.9, abs=0.15)
        assert 0 < (row > 0).sum() < reference.TOP_K
        assert len(np.unique(row)) < 0.9 * len(row), "passages repeat, so logits tie exactly"


def test_rows_must_fill_requests(capsys):
    with pytest.raises(SystemExit) as exit_info:
        run(capsys, "--rows", 7)
    assert exit_info.value.code == 2
    assert "--rows must be a multiple of --next-n (6), got 7" in capsys.readouterr().err


# ---- step files ----------------------------------------------------------------------------------


@pytest.fixture
def recorded():
    return step.load(inputs.STEP_8K)


def test_altered_logits_are_found(capsys, tmp_path, recorded):
    recorded["logits"][2, 100] += 0.01
    step.save(tmp_path / "altered.npz", recorded)
    code, _, err = run(capsys, "--replay", tmp_path / "altered.npz")
    assert code == 1
    assert "recorded logits: off by" in err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("q"), "lacks q"),
        (lambda s: s.update(logits=s["logits"].astype(np.float64)), "logits must be float32"),
        (lambda s: s.update(logits=s["logits"][0]), "logits must be float32 of 2 dimensions"),
        (lambda s: s.update(hook="top_k"), "hook must be one of decode_top_k"),
        (lambda s: s.update(hook="candidate_top_k"), "lacks next_n, candidates, block_size"),
    ],
)
def test_a_file_that_is_no_step_is_refused_in_words(capsys, tmp_path, recorded, change, message):
    change(recorded)
    step.save(tmp_path / "odd.npz", recorded)
    code, _, err = run(capsys, "--replay", tmp_path / "odd.npz")
    assert code == 1
    assert message in err


def test_truncated_and_pickled_files_are_refused_in_words(capsys, tmp_path, recorded):
    whole = inputs.STEP_8K.read_bytes()
    (tmp_path / "short.npz").write_bytes(whole[: len(whole) // 2])
    np.savez(tmp_path / "pickled.npz", **{**recorded, "q": np.array([object()])})
    for name in ("short.npz", "pickled.npz", "missing.npz"):
        code, _, err = run(capsys, "--replay", tmp_path / name)
        assert code == 1
        assert "cannot be read as .npz" in err


def test_saving_leaves_a_whole_file_or_none(tmp_path, recorded, monkeypatch):
    step.save(tmp_path / "step.npz", recorded)
    before = (tmp_path / "step.npz").read_bytes()
    monkeypatch.setattr(np, "savez_compressed", lambda file, **arrays: file.write(b"x") / 0)
    with pytest.raises(ZeroDivisionError):
        step.save(tmp_path / "step.npz", recorded)
    assert [path.name for path in tmp_path.iterdir()] == ["step.npz"]
    assert (tmp_path / "step.npz").read_bytes() == before


# ---- recording -----------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DSV41TOPK_RECORD", str(tmp_path / "calls"))
    monkeypatch.setattr(record, "_said", set())
    _runtime.reset()  # the hooks look at the switch once
    return tmp_path / "calls"


def call_of_decode_top_k(width=3_000, rows=6):
    logits = np.random.default_rng(1).standard_normal((rows, width), np.float32)
    seq_lens = np.array([2_000], np.int32)
    indices = reference.top_k_per_row_decode_512(logits, rows, seq_lens)
    return {"logits": logits, "next_n": rows, "seq_lens": seq_lens, "indices": indices}


def test_a_recorded_call_holds_the_live_columns(folder):
    call = call_of_decode_top_k()
    wider = np.zeros((6, 4_096), np.float32)
    wider[:, :3_000] = call["logits"]
    record.on_call("decode_top_k", **{**call, "logits": wider[:, :3_000]}, topk_tokens=512)
    (path,) = folder.iterdir()
    assert path.stat().st_mode & 0o077 == 0, "others may not read a server's data"
    saved = step.load(path)
    assert (saved["hook"], saved["next_n"]) == ("decode_top_k", 6)
    assert (saved["width"], saved["stride"]) == (3_000, 4_096)
    np.testing.assert_array_equal(saved["logits"], call["logits"][:, :2_000])
    np.testing.assert_array_equal(saved["result"], call["indices"])


def test_a_failing_call_fails_again_in_the_replay(capsys, folder):
    call = call_of_decode_top_k()
    call["indices"][3, 100] += 1
    record.on_call("decode_top_k", **call)
    (path,) = folder.iterdir()
    code, _, err = run(capsys, "--replay", path)
    assert code == 1
    assert "decode_top_k, recorded result: 1 of" in err
    assert "(3, 100)" in err


def test_a_recorded_choice_among_candidates_may_differ_in_last_bits_only(capsys, folder):
    rng = np.random.default_rng(5)
    layer = demo.synthetic_layer(rng, 2, 3, 4_000)
    candidates = np.sort(np.stack([rng.permutation(500)[:256] for _ in range(6)]), axis=1)
    candidates = candidates.astype(np.int32)
    truth, ids = reference.candidate_logits(
        layer["q"], layer["kv_cache"], layer["weights"], layer["seq_lens"], 3,
        layer["block_table"], candidates, 8, layer["fp8"],
    )  # fmt: skip
    indices = reference.compact_top_k_512(truth.astype(np.float32), ids, layer["seq_lens"], 3)
    layer["q_fp8"] = demo.Fp8Array(layer.pop("q"), layer.pop("fp8"))
    # Pages that no live column lies on are left out, and the table is renamed.
    layer["kv_cache"] = np.concatenate([layer["kv_cache"], layer["kv_cache"][:5]])
    record.on_call(
        "candidate_logits_top_k", **layer, candidates=candidates, block_size=8, indices=indices
    )
    (path,) = folder.iterdir()
    assert len(step.load(path)["kv_cache"]) == 63 + 62, "4,000 and 3,963 columns"
    code, out, err = run(capsys, "--replay", path)
    assert (code, err) == (0, "")
    assert out[-1] == "all layers match the oracle"
    left_out = np.setdiff1d(ids[1], indices[1])
    worst = left_out[np.argmin(truth[1][np.searchsorted(ids[1], left_out)])]
    indices[1, 7] = worst
    record.on_call(
        "candidate_logits_top_k", **layer, candidates=candidates, block_size=8, indices=indices
    )
    code, _, err = run(capsys, "--replay", max(folder.iterdir()))
    assert code == 1
    assert "row 1: a column of" in err


def test_the_folder_bounds_what_is_recorded(folder, monkeypatch, caplog):
    monkeypatch.setattr(record, "MAX_FILES", 3)
    for _ in range(5):
        record.on_call("decode_top_k", **call_of_decode_top_k())
    assert len(list(folder.iterdir())) == 3
    assert caplog.text.count("is full") == 1, "said once"
    next(folder.iterdir()).unlink()
    record.on_call("decode_top_k", **call_of_decode_top_k())
    assert len(list(folder.iterdir())) == 3
    monkeypatch.setattr(record, "MAX_FILES", 99)
    monkeypatch.setattr(record, "MAX_BYTES", 1)
    record.on_call("decode_top_k", **call_of_decode_top_k())
    assert len(list(folder.iterdir())) == 3


def test_a_call_that_is_too_large_is_left_out(folder, monkeypatch, caplog):
    monkeypatch.setattr(record, "MAX_FILE_BYTES", 10_000)
    record.on_call("decode_top_k", **call_of_decode_top_k())
    assert list(folder.iterdir()) == []
    assert "more than" in caplog.text


@pytest.mark.parametrize("fault", ["arguments", "folder", "disk"])
def test_recording_never_raises(folder, monkeypatch, caplog, fault):
    call = call_of_decode_top_k()
    if fault == "arguments":
        call["seq_lens"] = "twelve"
    elif fault == "folder":
        folder.write_text("a file is in the way")
    else:
        monkeypatch.setattr(np, "savez_compressed", lambda *a, **k: (_ for _ in ()).throw(OSError))
    record.on_call("decode_top_k", **call)
    record.on_call("decode_top_k", **call)
    assert caplog.text.count("was not recorded") == 1


def test_nothing_is_recorded_without_the_switch(tmp_path, monkeypatch):
    monkeypatch.delenv("DSV41TOPK_RECORD", raising=False)
    monkeypatch.chdir(tmp_path)
    record.on_call("decode_top_k", **call_of_decode_top_k())
    assert list(tmp_path.iterdir()) == []


def test_torch_tensors_are_recorded(capsys, folder):
    torch = pytest.importorskip("torch", reason="needs torch")
    call = {
        k: torch.from_numpy(v) if k != "next_n" else v for k, v in call_of_decode_top_k().items()
    }
    record.on_call("decode_top_k", **call)
    code, out, err = run(capsys, "--replay", *folder.iterdir())
    assert (code, err) == (0, "")
    assert out[-1] == "all layers match the oracle"


def test_the_hooks_record_a_whole_step(capsys, folder):
    assert run(capsys, "--context", 2_000)[0] == 0
    hooks = sorted(step.load(path)["hook"] for path in folder.iterdir())
    expected = ["candidate_logits_top_k"] * 4 + ["decode_top_k"] * 4 + ["select_candidates"]
    assert hooks == expected
    files = list(folder.iterdir())
    code, out, err = run(capsys, "--replay", *files)
    assert (code, err) == (0, "")
    assert out[-1] == "all layers match the oracle"
