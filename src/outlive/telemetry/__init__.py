"""What goes to OpenTelemetry and Sentry. docs/adr/0007-telemetry.md says which process sends what.

Their libraries are optional: these modules, but for `background`, are imported only when a setting turns them on.
"""
