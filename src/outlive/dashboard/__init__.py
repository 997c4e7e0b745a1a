"""The dashboard: what happens, why processes died, and what operators can do about it, in a browser.

`asgi` makes an app that can be mounted in one's own, and `serving` runs it as `outlive dashboard` does. It needs the
extra `dashboard`, so nothing else of outlive imports it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from outlive import config as configuration
from outlive import migrate
from outlive.errors import ConfigError

if TYPE_CHECKING:
    from outlive.client.app import App
    from outlive.config import Config
    from outlive.dashboard.people import Who
    from outlive.dashboard.site import Site


def asgi(
    app: App | str | None = None,
    *,
    token: str | None = None,
    viewer_token: str | None = None,
    who: Who | None = None,
) -> Site:
    """The dashboard of an app, or of the database at an address, as an ASGI app: `app.mount("/jobs", asgi(jobs))`.

    It has its own login. Without `token` and `viewer_token` those of the settings hold; there must be one. `who` is a
    function, async or not, of the request that says who is signed in at your app: `("anna", "operator")`, or "viewer",
    or None, and then the own login follows. The setting `dashboard_user_header` does not apply: a server may pass on an
    address that the client has made up.
    """
    of = None if isinstance(app, str) else app
    settings = configuration.load(flags={"database_url": app}) if of is None else of.config
    token, viewer_token = token or settings.dashboard_token, viewer_token or settings.dashboard_viewer_token
    if token is None:
        raise ConfigError("a dashboard needs a token: give `token`, or set dashboard_token (OUTLIVE_DASHBOARD_TOKEN)")
    mounted = replace(settings, dashboard_user_header=None, dashboard_root_path="")
    return build(mounted, token=token, viewer_token=viewer_token, app=of, who=who)


def build(
    settings: Config,
    *,
    token: str,
    viewer_token: str | None = None,
    hosts: Iterable[str] | None = None,
    app: App | None = None,
    who: Who | None = None,
) -> Site:
    """The dashboard of the database that the settings name, or of the one that an app uses now: in a test it is another
    one.
    """
    from outlive.dashboard.access import Access
    from outlive.dashboard.site import Site

    def address() -> str:
        return migrate.address(settings if app is None else app.config)

    return Site(settings, address, Access(token, viewer_token), hosts, who)
