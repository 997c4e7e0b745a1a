"""The dashboard: what happens, why processes died, and what operators can do about it, in a browser.

`asgi` makes an app that can be mounted in one's own, and `serving` runs it as `outlive dashboard` does. It needs the
extra `dashboard`, so nothing else of outlive imports it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from outlive import config as configuration
from outlive import migrate
from outlive.errors import ConfigError

if TYPE_CHECKING:
    from outlive.client.app import App
    from outlive.config import Config
    from outlive.dashboard.site import Site


def asgi(app: App | str | None = None, *, token: str | None = None, viewer_token: str | None = None) -> Site:
    """The dashboard of an app, or of the database at an address, as an ASGI app: `app.mount("/jobs", asgi(jobs))`.

    It has its own login. Without `token` and `viewer_token` those of the settings hold; there must be one. The setting
    `dashboard_user_header` does not apply: a server may pass on an address that the client has made up.
    """
    if app is None or isinstance(app, str):
        settings = configuration.load(flags={"database_url": app})
        address: Callable[[], str] = partial(migrate.address, settings)
    else:
        settings = app.config
        address = partial(_address_of, app)
    token = token or settings.dashboard_token
    if token is None:
        raise ConfigError("a dashboard needs a token: give `token`, or set dashboard_token (OUTLIVE_DASHBOARD_TOKEN)")
    return _site(settings, address, token, viewer_token or settings.dashboard_viewer_token)


def build(settings: Config, *, token: str, viewer_token: str | None = None, hosts: Iterable[str] | None = None) -> Site:
    """The dashboard of the database that the settings name."""
    address = partial(migrate.address, settings)
    user_header, root_path = settings.dashboard_user_header, settings.dashboard_root_path
    return _site(settings, address, token, viewer_token, hosts=hosts, user_header=user_header, root_path=root_path)


def _address_of(app: App) -> str:
    """The database that the app uses now: in a test it is another one."""
    return migrate.address(app.config)


def _site(
    settings: Config,
    address: Callable[[], str],
    token: str,
    viewer_token: str | None,
    *,
    hosts: Iterable[str] | None = None,
    user_header: str | None = None,
    root_path: str = "",
) -> Site:
    from outlive.dashboard.access import Access
    from outlive.dashboard.pages import PAGES
    from outlive.dashboard.proxy import Proxy
    from outlive.dashboard.site import Site

    proxy = Proxy(settings.dashboard_proxy, user_header)
    return Site(address, Access(token, viewer_token), PAGES, hosts=hosts, proxy=proxy, root_path=root_path)
