"""A crawler: each page of a site is opened in a real browser, in a process of its own, under limits of time and memory.

`tasks` is the app, and what to read first. `browsing` opens a page in Chromium. `site` serves a site on this machine,
with pages that hang, crash the browser and eat memory.
"""
