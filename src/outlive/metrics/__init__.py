"""Metrics for Prometheus: what is measured, the counters of a process, and the text that a scraper reads.

`catalogue` names every metric. `tallies` are plain counters, so the hot path knows nothing of Prometheus. `exposition`
makes the text. `database` reads the figures that describe the whole database; workers, `outlive reap` and the dashboard
serve them alike. Only `exposition` imports prometheus-client, which is an extra.
"""
