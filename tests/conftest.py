# SPDX-License-Identifier: Apache-2.0
"""Every test that asks for `backend` runs on each backend that this machine has."""

import pytest
from helpers import backends


def pytest_addoption(parser):
    parser.addoption(
        "--backends",
        default="",
        help=f"only these, with commas between ({', '.join(backends.NAMES)}); all that the machine has by default",
    )
    parser.addoption("--long", action="store_true", help="the longest rows on the slow backends too")


def _chosen(config):
    asked = [name for name in config.getoption("--backends").split(",") if name]
    return asked or [name for name in backends.NAMES if backends.unavailable(name) is None]


def pytest_generate_tests(metafunc):
    if "backend" in metafunc.fixturenames:
        metafunc.parametrize("backend", _chosen(metafunc.config), indirect=True, scope="session")


@pytest.fixture(scope="session")
def backend(request):
    """A backend: see helpers/backends.py."""
    reason = backends.unavailable(request.param)
    if reason:
        pytest.fail(f"--backends {request.param}: {reason}")
    return backends.backend(request.param)
