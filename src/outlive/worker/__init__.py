"""The supervisor of a worker: it claims jobs, runs them in children, watches these, and writes how they ended."""

import logging

log = logging.getLogger("outlive.worker")
