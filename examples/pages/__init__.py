"""A crawler: pages are fetched over HTTP, many at once in one process. Each page that has scripts is then opened in a
real browser, in a process of its own, under limits of time and memory.

`tasks` is the app, and what to read first. `fetching` gets a page over HTTP, and `browsing` opens one in Chromium.
`site` serves a site on this machine, with pages that hang, crash the browser and eat memory.
"""
