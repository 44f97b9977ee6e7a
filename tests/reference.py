# SPDX-License-Identifier: Apache-2.0
"""The contract as code: numpy, stable sorts, slow and obvious.

A row's entries are a function of the row alone, so everything here works row by row. Nothing at or past a
row's end is looked at.
"""

import numpy as np

TOP_K = 512


def order_key(values):
    """Float32 values as uint32 keys in the contract's order: -0.0 == +0.0, NaN of either sign above +inf."""
    values = np.ascontiguousarray(values, np.float32)
    bits = np.where(values == 0, np.float32(0), values).view(np.uint32)
    keys = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31))
    return np.where(np.isnan(values), np.uint32(0xFFFFFFFF), keys)


def best(keys, columns, count):
    """Places of the `count` largest of `keys`; of equal ones those with the lowest column."""
    return np.lexsort((columns, np.uint32(0xFFFFFFFF) - keys))[:count]


def row_ends(seq_lens, next_n, rows, width):
    """Where the live columns of each row end."""
    row = np.arange(rows)
    if seq_lens.ndim == 2:
        ends = seq_lens.reshape(-1)[:rows].astype(np.int64)
    else:
        ends = seq_lens[row // next_n].astype(np.int64) - next_n + row % next_n + 1
    return np.clip(ends, 0, width)


def _padded(columns, count):
    row = np.full(count, -1, np.int32)
    row[: len(columns)] = columns
    return row


def _short(end):
    """What a row of at most 512 live columns gets, whatever its values."""
    return _padded(np.arange(end), TOP_K)


def top_k_row(row, end):
    """The 512 entries of a row of logits."""
    if end <= TOP_K:
        return _short(end)
    return _padded(np.sort(best(order_key(row[:end]), np.arange(end), TOP_K)), TOP_K)


def top_k_per_row_decode_512(logits, next_n, seq_lens):
    """The indices that the call of that name writes, int32 [rows, 512]."""
    rows, width = logits.shape
    ends = row_ends(seq_lens, next_n, rows, width)
    out = [top_k_row(logits[r], ends[r]) for r in range(rows)]
    return np.array(out, np.int32).reshape(rows, TOP_K)


def candidate_columns(candidates, block_size, end, width):
    """Live columns of a row's candidate blocks in slot order, each once, where it first stands."""
    blocks = -(-width // block_size)
    seen, columns = set(), []
    for block in candidates.tolist():
        if 0 <= block < blocks and block not in seen:
            seen.add(block)
            columns.append(np.arange(block * block_size, min((block + 1) * block_size, end)))
    return np.concatenate([np.empty(0, np.int64), *columns])


def select_live(values, columns):
    """The 512 entries among `columns`, in the order in which they are given."""
    chosen = best(order_key(values), columns, TOP_K)
    return _padded(columns[np.sort(chosen)], TOP_K)


def candidate_top_k_512(logits, next_n, seq_lens, candidates, block_size):
    """The indices that the call of that name writes."""
    rows, width = logits.shape
    ends = row_ends(seq_lens, next_n, rows, width)
    out = np.empty((rows, TOP_K), np.int32)
    for r in range(rows):
        if ends[r] <= TOP_K:
            out[r] = _short(ends[r])
        else:
            columns = candidate_columns(candidates[r], block_size, ends[r], width)
            out[r] = select_live(logits[r, columns], columns)
    return out


def compact_top_k_512(compact_logits, compact_ids, seq_lens, next_n):
    """The indices that the call of that name and its `_regs` twin write."""
    rows = compact_logits.shape[0]
    ends = row_ends(seq_lens, next_n, rows, np.iinfo(np.int32).max)
    out = np.empty((rows, TOP_K), np.int32)
    for r in range(rows):
        live = compact_ids[r] >= 0
        out[r] = _short(ends[r]) if ends[r] <= TOP_K else select_live(compact_logits[r, live], compact_ids[r, live])
    return out


def block_keys(row, end, block_size):
    """Order keys of the scores of a row's blocks: the largest live logit's, and +inf's for the newest block."""
    if end == 0:
        return np.empty(0, np.uint32)
    keys = np.maximum.reduceat(order_key(row[:end]), np.arange(0, end, block_size))
    keys[-1] = order_key(np.float32([np.inf]))[0]
    return keys


def candidate_blocks(logits, visible, row_repeat, block_size, slots):
    """The block ids that the call of that name writes, int32 [rows, slots]."""
    rows, width = logits.shape
    minus_inf = order_key(np.float32([-np.inf]))[0]
    out = np.full((rows, slots), -1, np.int32)
    for r in range(rows):
        end = int(np.clip(visible.reshape(-1)[r // row_repeat], 0, width))
        keys = block_keys(logits[r], end, block_size)
        chosen = np.sort(best(keys, np.arange(len(keys)), slots))
        chosen = chosen[keys[chosen] != minus_inf]
        out[r, : len(chosen)] = chosen
    return out
