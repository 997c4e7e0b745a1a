"""The same app with ballast: as many megabytes of objects as BENCH_BALLAST_MB says, as a large app holds them."""

import os

from outlive_lab.bench.jobs import app

BALLAST = [bytes(1000) for _ in range(1000 * int(os.environ.get("BENCH_BALLAST_MB", "0")))]

__all__ = ["BALLAST", "app"]
