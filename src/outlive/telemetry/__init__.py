"""What OpenTelemetry and Sentry are told. docs/adr/0007-telemetry.md says which process tells what.

Their libraries are optional: the modules that import them (`producing`, `spans`, `crashes`) are imported when a
setting turns them on, and not before.
"""
