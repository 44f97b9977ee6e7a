# SPDX-License-Identifier: Apache-2.0
"""Every test that asks for `backend` runs on each backend that this machine has."""

import pytest
from helpers import backends, buffers, harness


def pytest_addoption(parser):
    parser.addoption(
        "--backends",
        default="",
        help=f"only these, with commas between, of {', '.join(backends.NAMES)}; by default all "
        "that the machine has",
    )
    parser.addoption(
        "--flavour",
        default="plain",
        choices=sorted(harness.FLAVOURS),
        help="how the backends native and harness are compiled; `sanitized` needs an environment "
        "that tests/harness/test_sanitizers.py makes",
    )


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
    flavour = request.config.getoption("--flavour")
    if request.param not in ("native", "harness"):
        return backends.backend(request.param)
    buffers.heap_blocks = flavour == "sanitized"
    return backends.backend(request.param, flavour)
