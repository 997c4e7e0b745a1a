"""What OpenTelemetry and Sentry are told. docs/adr/0007-telemetry.md says which process tells what.

Their libraries are optional: the modules that import them (`producing`, `otlp`, `crashes`) are imported only when
a setting turns them on.
"""
