# SPDX-License-Identifier: Apache-2.0
"""Benchmarks to run on a machine of one's own: `python -m dsv41topk bench`."""
