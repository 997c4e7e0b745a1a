"""The tasks of `observed`, in an app that lets Sentry trace. Only workers and programs of their own import it."""

import os

import sentry_sdk

from tests.telemetry import observed

sentry_sdk.init(traces_sample_rate=float(os.environ.get("RATE", "1")), auto_enabling_integrations=False)
app = observed.app
