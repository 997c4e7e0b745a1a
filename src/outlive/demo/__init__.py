"""`outlive demo`: jobs survive what kills their processes, on a Postgres and a worker that leave nothing behind.

`jobs` is the app, `process` its worker, `play` what happens, `show` what people see of it.
"""

from outlive.demo.play import main

__all__ = ["main"]
