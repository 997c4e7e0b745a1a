"""Metrics for Prometheus. `catalogue` names them, `tallies` count in plain numbers, and `database` reads those that
describe the whole database. Only `exposition` imports prometheus-client, which is an extra."""
