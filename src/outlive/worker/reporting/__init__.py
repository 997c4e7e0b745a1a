"""Reports to people and their tools: log lines, alerts, probes, metrics, traces, systemd.

What is here changes no job. If it fails, jobs go on.
"""
