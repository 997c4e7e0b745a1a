"""Where shared tasks have their jobs: the app of this module decides it.

In a project of Django with a backend of outlive it is the database of that backend, whatever OUTLIVE_DATABASE_URL
says, and in its tests the test database. Elsewhere the settings say it, as for any app.
"""

from __future__ import annotations

import sys

from outlive.client import redirection
from outlive.client.home import Home, HomedApp


class SharedApp(HomedApp):
    @property
    def home(self) -> Home | None:
        if redirection.database_url is not None or "outlive.django.backend" not in sys.modules:
            return None
        from outlive.django import shared

        return shared.home()
