# SPDX-License-Identifier: Apache-2.0
"""Every test that asks for `backend` runs on each backend that this machine has.

The closing lines say how many cases ran on each rung, and why others did not:

==== =====================================================================
rung what runs
==== =====================================================================
1    the oracle
2    the CPU backend, hooks, binding, build
3    the kernels' source on fibres
4    the gfx942 code object's resources
5    the gfx942 code object in the emulator
6    a real GPU
==== =====================================================================
"""

import collections
import zlib

import numpy as np
import pytest
from helpers import backends, buffers, harness


def pytest_configure(config):
    config.addinivalue_line("markers", "launched: only on backends that run csrc/launch.c")


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
        help="how the backends native, harness and gfx942 are compiled; `sanitized` needs an "
        "environment that tests/harness/test_sanitizers.py makes",
    )
    parser.addoption(
        "--require-gpu", action="store_true", help="a test of rung 6 that is skipped has failed"
    )
    parser.addoption(
        "--all-flavours",
        action="store_true",
        help="sanitizers, races, fast-math and wave32 on fibres too: minutes more",
    )
    parser.addoption("--seed", type=int, default=41, help="of the fixture rng (41)")


RUNG_OF_BACKEND = {"cpu": 2, "native": 2, "harness": 3, "gfx942": 5, "cuda": 6}
RUNG_OF_FOLDER = {"harness": 3, "gfx942": 5, "gpu": 6}


def _rung(item):
    """The rung on which a test runs; see this file's head."""
    callspec = getattr(item, "callspec", None)
    if callspec is not None and "backend" in callspec.params:
        # Not a name: a test that no backend of this machine can run.
        return RUNG_OF_BACKEND.get(callspec.params["backend"], 2)
    if item.path.name in ("test_reference.py", "test_resources.py"):
        return 1 if item.path.name == "test_reference.py" else 4
    return RUNG_OF_FOLDER.get(item.path.parent.name, 2)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    """Note the test's rung, and let none of rung 6 be skipped where a GPU is required."""
    outcome = yield
    report = outcome.get_result()
    required = _rung(item) == 6 and item.config.getoption("--require-gpu")
    # "host only" is about the case, not about what the machine lacks.
    if report.skipped and required and "host only" not in report.longrepr[2]:
        report.outcome, report.longrepr = "failed", f"--require-gpu, but {report.longrepr[2]}"
    report.user_properties.append(("rung", _rung(item)))


def pytest_terminal_summary(terminalreporter):
    """Say how many cases each rung ran: `rung 5: 812 passed, 3 skipped`."""
    counts = collections.defaultdict(collections.Counter)
    for outcome in ("passed", "failed", "error", "skipped", "xfailed"):
        for report in terminalreporter.stats.get(outcome, ()):
            # A module that is skipped as a whole has a report without properties.
            rung = dict(getattr(report, "user_properties", ())).get("rung", "unknown")
            counts[rung][outcome] += 1
    terminalreporter.section("cases by rung")
    for rung, outcomes in sorted(counts.items(), key=str):
        words = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
        terminalreporter.write_line(f"rung {rung}: {words}")


def _chosen(config):
    asked = [name for name in config.getoption("--backends").split(",") if name]
    if asked:
        return asked
    required = ["cuda"] if config.getoption("--require-gpu") else []
    return [n for n in backends.NAMES if n in required or backends.unavailable(n) is None]


def pytest_generate_tests(metafunc):
    names = _chosen(metafunc.config)
    if metafunc.definition.get_closest_marker("launched"):
        names = [name for name in names if name in backends.LAUNCHED]
    if "backend" in metafunc.fixturenames:
        metafunc.parametrize("backend", names, indirect=True, scope="session")


@pytest.fixture(scope="session")
def backend(request):
    """A backend: see helpers/backends.py."""
    reason = backends.unavailable(request.param)
    if reason:
        pytest.fail(f"--backends {request.param}: {reason}")
    flavour = request.config.getoption("--flavour")
    if request.param not in ("native", *backends.LAUNCHED):
        return backends.backend(request.param)
    buffers.heap_blocks = flavour == "sanitized"
    return backends.backend(request.param, flavour)


@pytest.fixture
def rng(request):
    """A generator whose seed is a function of `--seed` and the test; a failure shows it."""
    seed = [request.config.getoption("--seed"), zlib.crc32(request.node.nodeid.encode())]
    print(f"seed {seed}")
    return np.random.default_rng(seed)
