"""Builds a wheel that carries libespresso.so, the plugins and the command, which `make` builds in the checkout; and an
sdist, which carries the C sources for that in folder source.

ESPRESSO_BUILD names a folder that make has built already; without it, this calls `make lib plugins tools`.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1
    from wheel.bdist_wheel import bdist_wheel

HERE = Path(__file__).resolve().parent
ROOT = HERE / "source" if (HERE / "source").exists() else HERE.parent
SOURCES = "LICENSE Makefile espresso.c espresso.h espresso_impl backends codecs planner plugins tools".split()
SOURCES += ["tests/tests.mk", "tests/cuda/ptx/ptx.mk"]  # the Makefile includes them
SCRATCH = ROOT / "build" / "python"  # what setuptools writes, so that this folder stays clean


def version():
    return re.search(r'ESPRESSO_VERSION = "(.*)"', (HERE / "espresso/_abi.py").read_text()).group(1)


def built():
    """Returns the folder with lib/libespresso.so."""
    own = os.environ.get("ESPRESSO_BUILD")
    if own:
        return Path(own)
    if not (ROOT / "espresso.h").exists():
        raise SystemExit("espresso: the C sources are not there: use a checkout (pip install ./python), or an sdist")
    subprocess.run(["make", "-s", f"-j{os.cpu_count() or 1}", "lib", "plugins", "tools"], cwd=ROOT, check=True)
    return ROOT / "build"


class BuildPy(build_py):
    def run(self):
        super().run()
        if self.editable_mode:
            return  # the package finds the checkout's build folder
        build = built()
        native = Path(self.build_lib) / "espresso" / "_native"
        shutil.rmtree(native, ignore_errors=True)
        (native / "lib" / "espresso").mkdir(parents=True)
        shutil.copy(build / "lib" / "libespresso.so", native / "lib" / "libespresso.so")
        for plugin in sorted((build / "lib" / "espresso").glob("*.so")):
            shutil.copy(plugin, native / "lib" / "espresso")
        if (build / "bin" / "espresso").exists():
            (native / "bin").mkdir()
            shutil.copy(build / "bin" / "espresso", native / "bin")
        for folder in (ROOT / "planner" / "models", build / "share" / "espresso" / "systems"):
            (native / "share" / "espresso" / folder.name).mkdir(parents=True)
            for file in sorted(folder.glob("*.json")):
                shutil.copy(file, native / "share" / "espresso" / folder.name)

    editable_mode = False


class Sdist(sdist):
    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        for name in SOURCES:
            target = Path(base_dir) / "source" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, target)


class Binary(Distribution):
    def has_ext_modules(self):
        return True


class BdistWheel(bdist_wheel):
    def get_tag(self):
        return "py3", "none", super().get_tag()[2]  # the library calls nothing of Python's


SCRATCH.mkdir(parents=True, exist_ok=True)
setup(
    version=version(),
    distclass=Binary,
    cmdclass={"build_py": BuildPy, "bdist_wheel": BdistWheel, "sdist": Sdist},
    options={
        "build": {"build_base": str(SCRATCH)},
        "egg_info": {"egg_base": str(SCRATCH)},
    },
)
