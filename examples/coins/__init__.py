"""Coin prices: three web sites are searched for every coin that comes in, and each coin gets one valuation.

`tasks` is the app, and what to read first. `fetching` gets pages, `parsing` reads them. `site` serves the three sites
on this machine, with faults, and `catalog` is what they have to offer.
"""
