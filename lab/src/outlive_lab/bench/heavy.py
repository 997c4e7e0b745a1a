"""The same app with large libraries, as apps that crawl or compute import them.

It imports those that are installed; the figures name them.
"""

import os
from importlib import import_module
from importlib.util import find_spec

from outlive_lab.bench.jobs import app

LIBRARIES = ("pandas", "numpy", "scipy", "lxml.etree", "matplotlib.pyplot", "PIL.Image", "pydantic")

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # Threads do not survive a fork.
os.environ.setdefault("MPLBACKEND", "Agg")
LOADED = [name for name in LIBRARIES if find_spec(name.partition(".")[0]) is not None]
for name in LOADED:
    import_module(name)

__all__ = ["LOADED", "app"]
