# SPDX-License-Identifier: Apache-2.0
"""Rows of logits by name: functions of (rng, rows, width) with a readable repr."""

from pathlib import Path

import numpy as np

STEP_8K = Path(__file__).resolve().parent / "data" / "step_8k.npz"

ENDS = (0, 1, 511, 512, 513)
"""Ends at which a row changes its kind; tests add chunk +-1, the width, past it, negative ones."""


class Distribution:
    """A named way to draw float32 [rows, width]."""

    def __init__(self, name, draw):
        self.name, self._draw = name, draw

    def __call__(self, rng, rows, width):
        return np.ascontiguousarray(self._draw(rng, rows, width), np.float32)

    def __repr__(self):
        return self.name


def planted_cut(value, above, tied):
    """Rows with `above` values better than `value` and `tied` equal to it, at random columns."""

    def draw(rng, rows, width):
        out = np.float32(value) - 1 - rng.random((rows, width), np.float32)
        for row in out:
            places = rng.permutation(width)[: above + tied]
            row[places[:above]] = (
                np.float32(value) + 1 + rng.random(len(places[:above]), np.float32)
            )
            row[places[above:]] = value
        return out

    return Distribution(f"planted_cut({value}, above={above}, tied={tied})", draw)


def equal_leading_bits(bits):
    """Rows whose values differ in their last `32 - bits` bits alone."""

    def draw(rng, rows, width):
        low = rng.integers(0, 1 << (32 - bits), (rows, width), np.uint32)
        return (np.uint32(0x3F800000 >> (32 - bits) << (32 - bits)) | low).view(np.float32)

    return Distribution(f"equal_leading_bits({bits})", draw)


def _normal(rng, rows, width):
    return rng.standard_normal((rows, width), np.float32)


def _model_like(rng, rows, width):
    """Almost all negative, the 512th largest near -0.9, a few positive, equal keys now and then."""
    x = -rng.gamma(6.0, 0.6, (rows, width)).astype(np.float32)
    x[:, rng.integers(0, width, max(1, width // 4096))] *= -1
    return np.take_along_axis(x, np.sort(rng.integers(0, width, (rows, width)), axis=1), axis=1)


def _raw_bits(rng, rows, width):
    """Every bit pattern: NaN of both signs, both zeros, subnormal values, infinities."""
    bits = rng.integers(0, 1 << 32, (rows, width), np.uint32)
    odd = np.array(
        [0x7FC00000, 0xFFC00001, 0x7F800001, 0, 1 << 31, 1, 0x80000001, 0x7F800000, 0xFF800000],
        np.uint32,
    )
    pick = rng.random((rows, width)) < 0.1
    return np.where(pick, odd[rng.integers(0, len(odd), (rows, width))], bits).view(np.float32)


def _nan_both_signs(rng, rows, width):
    """More NaN than 512 of them, of both signs, among normal values."""
    nan = np.array([0x7FC00000, 0xFFC00000], np.uint32).view(np.float32)
    pick = rng.random((rows, width)) < 0.3
    return np.where(pick, nan[rng.integers(0, 2, (rows, width))], _normal(rng, rows, width))


def _few_nan(rng, rows, width):
    """A few NaN, so that the cut lies among numbers."""
    x = _normal(rng, rows, width)
    for row in x:
        row[rng.integers(0, width, 7)] = np.array([0xFFC00000], np.uint32).view(np.float32)[0]
    return x


def _inf_heavy(rng, rows, width):
    values = np.array([np.inf, -np.inf, 0.0, -0.0, 1.0], np.float32)
    return values[rng.integers(0, len(values), (rows, width))]


def _masked(rng, rows, width):
    """7 of 8 values -inf, in blocks of 8, as candidate masking leaves them."""
    keep = np.repeat(rng.random((rows, -(-width // 8))) < 1 / 8, 8, axis=1)[:, :width]
    return np.where(keep, _normal(rng, rows, width), np.float32(-np.inf))


def _wide_range(rng, rows, width):
    """Magnitudes from subnormal to the largest, both signs: linear bins tell few of them apart."""
    exponents = rng.integers(-149, 128, (rows, width))
    x = np.ldexp(1 + rng.random((rows, width)) / 2, exponents)
    return np.where(rng.random((rows, width)) < 0.5, -x, x).astype(np.float32)


def _clustered(rng, rows, width):
    """The best values in a tenth of the row, across zero: most waves have none of them."""
    x = _normal(rng, rows, width) / 8 - np.float32(0.3)
    first = int(rng.integers(width - width // 10))
    x[:, first : first + width // 10] += np.float32(0.25)
    return x


def _real_text(rng, rows, width):
    """Logits made from real text, end to end as the width asks, each row from elsewhere."""
    with np.load(STEP_8K) as step:
        text = step["logits"]
    out = np.empty((rows, width), np.float32)
    for r in range(rows):
        long = np.tile(
            np.roll(text[r % len(text)], int(rng.integers(text.shape[1]))),
            width // text.shape[1] + 1,
        )
        out[r] = long[:width]
    return out


NORMAL = Distribution("normal", _normal)
MASKED = Distribution("masked", _masked)
REAL_TEXT = Distribution("real_text", _real_text)
CLUSTERED = Distribution("clustered", _clustered)
HALF_INTEGERS = Distribution("half_integers", lambda g, r, w: np.round(_normal(g, r, w) * 2) / 2)
FEW_NAN = Distribution("few_nan", _few_nan)
NOT_NUMBERS = [
    FEW_NAN,
    Distribution("raw_bits", _raw_bits),
    Distribution("nan_both_signs", _nan_both_signs),
    Distribution("inf_heavy", _inf_heavy),
]
"""NaN of both signs and infinities."""

USUAL = [NORMAL, MASKED, REAL_TEXT, HALF_INTEGERS, CLUSTERED]
"""For shapes that are too long for all."""

DISTRIBUTIONS = [
    *USUAL,
    Distribution("model_like", _model_like),
    Distribution("wide_range", _wide_range),
    equal_leading_bits(12),
    equal_leading_bits(22),
    *NOT_NUMBERS,
    Distribution("all_equal", lambda g, r, w: np.full((r, w), 1.5, np.float32)),
    Distribution("all_minus_inf", lambda g, r, w: np.full((r, w), -np.inf, np.float32)),
    Distribution(
        "signed_zeros",
        lambda g, r, w: np.where(g.random((r, w)) < 0.5, np.float32(-0.0), np.float32(0)),
    ),
    Distribution("ascending", lambda g, r, w: np.tile(np.arange(w, dtype=np.float32), (r, 1))),
    Distribution("descending", lambda g, r, w: -np.tile(np.arange(w, dtype=np.float32), (r, 1))),
    planted_cut(-0.9, above=511, tied=300),
    planted_cut(0.25, above=0, tied=513),
    planted_cut(2.0, above=512, tied=40),
    planted_cut(-3.0, above=100, tied=1000),
]
