# SPDX-License-Identifier: Apache-2.0
"""Build the extension modules with any C compiler; nothing of a GPU's toolchain is needed.

Two switches: DSV41TOPK_WERROR=1 makes warnings errors, and DSV41TOPK_AOT=1 compiles the gfx942 code
object into the package when there is a compiler for it.
"""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
CFLAGS = ["-std=gnu11", "-O3", "-Wall", "-Wextra", "-pthread", "-fvisibility=hidden"]
# Cython's output has these by design.
CFLAGS_OF_CYTHON = ["-Wno-unused-parameter", "-Wno-cast-function-type", "-Wno-sign-compare"]

# The C sources are in one module, so that their state is there once.
MODULES = {
    "_errors": [],
    "_tensor": [],
    "_bind": [],
    "_runtime": [
        "csrc/launch.c",
        "csrc/logits.c",
        "csrc/runtime.c",
        *sorted(path.as_posix() for path in Path("csrc/cpu").glob("*.c")),
    ],
    "hooks": [],
    "kernels": [],
}


class BuildPython(build_py):
    """Put csrc into the package, so that `build()` can compile on the user's machine."""

    def run(self):
        """Copy what setuptools copies, then csrc, and the code object if it is asked for."""
        super().run()
        if self.editable_mode:  # csrc is found beside the package
            objects = ROOT / "dsv41topk" / "objects"
        else:
            package = Path(self.build_lib) / "dsv41topk"
            shutil.rmtree(package / "csrc", ignore_errors=True)
            shutil.copytree(ROOT / "csrc", package / "csrc")
            objects = package / "objects"
        if os.environ.get("DSV41TOPK_AOT") == "1":
            compile_ahead(objects)


def compile_ahead(objects):
    """Compile for gfx942 into that folder; `_build.py` is loaded without its package."""
    spec = importlib.util.spec_from_file_location("dsv41_build", ROOT / "dsv41topk" / "_build.py")
    build = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = build  # its dataclasses look their module up
    spec.loader.exec_module(build)
    if build.aot(objects) is None:
        print("DSV41TOPK_AOT=1, but there is no compiler for gfx942: build() will look again")


def extensions():
    """Return the extension modules."""
    flags = [*CFLAGS, *CFLAGS_OF_CYTHON]
    if os.environ.get("DSV41TOPK_WERROR") == "1":
        flags.append("-Werror")
    return [
        Extension(
            f"dsv41topk.{name}",
            [f"dsv41topk/{name}.pyx", *sources],
            include_dirs=["csrc"],
            depends=[str(path) for path in Path("csrc").rglob("*.h")],
            extra_compile_args=flags,
            extra_link_args=["-pthread"],
            libraries=["m", "dl"],
        )
        for name, sources in MODULES.items()
    ]


setup(
    ext_modules=cythonize(
        extensions(),
        build_dir="build/cython",
        compiler_directives={
            "language_level": "3",
            "freethreading_compatible": True,
        },
    ),
    cmdclass={"build_py": BuildPython},
)
