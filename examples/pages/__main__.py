"""`python -m pages serve` has the site up, `crawl` visits all its pages, `show` prints what is known of them."""

from __future__ import annotations

import argparse
import threading
from contextlib import closing, suppress
from urllib.parse import urlsplit

from pages import site, tasks


def serve() -> None:
    with site.serve(port=urlsplit(tasks.SITE).port or 80) as one:
        print("serving", one.url, flush=True)
        threading.Event().wait()


def crawl() -> None:
    print(tasks.fetch.enqueue(f"{tasks.SITE}/").id)


def show() -> None:
    for record in tasks.app.records(tasks.PAGES):
        print(f"{record.dedupe_key}  {record.data['title']}  {len(record.data['links'])} links")


def main() -> None:
    parser = argparse.ArgumentParser(prog="pages", description=__doc__)
    parser.add_argument("command", choices=["serve", "crawl", "show"])
    commands = {"serve": serve, "crawl": crawl, "show": show}
    with closing(tasks.app.connections), suppress(KeyboardInterrupt):
        commands[parser.parse_args().command]()


if __name__ == "__main__":
    main()
