"""`python -m coins serve` has the three sites up, `collect 20` asks for twenty coins, `values` shows what is known."""

from __future__ import annotations

import argparse
import threading
from contextlib import closing, suppress

from coins import catalog, site, tasks


def serve() -> None:
    ports = dict(place.split("=127.0.0.1:") for place in catalog.DEFAULT_SITES.split(","))
    with site.serve({name: int(port) for name, port in ports.items()}) as sites:
        print("serving", site.places(sites), flush=True)
        threading.Event().wait()


def collect(count: int) -> None:
    jobs = tasks.app.enqueue_many(tasks.collect.job(intake) for intake in catalog.intakes(count))
    print(f"{len(jobs)} coins are to be valued")


def values() -> None:
    titles = {record.dedupe_key: record.data["title"] for record in tasks.app.records(tasks.INTAKES)}
    for record in tasks.app.records(tasks.VALUATIONS):
        coin, valued = record.dedupe_key, record.data
        print(f"{coin}  {titles[coin]:<35}  ${valued['cents'] / 100:,.2f}  from {valued['prices']} prices")


def main() -> None:
    parser = argparse.ArgumentParser(prog="coins", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("serve")
    commands.add_parser("collect").add_argument("count", type=int, nargs="?", default=20)
    commands.add_parser("values")
    asked = parser.parse_args()
    with closing(tasks.app.connections), suppress(KeyboardInterrupt):
        match asked.command:
            case "serve":
                serve()
            case "collect":
                collect(asked.count)
            case "values":
                values()


if __name__ == "__main__":
    main()
