"""An app that tells `logging` at its import where records go, as many do, and whose jobs share a process."""

import asyncio
import logging

import outlive

app = outlive.App()
logging.basicConfig(format="%(levelname)s: %(message)s")


@app.task(share=10)
async def logger(name: str) -> None:
    logging.warning("hello from %s", name)
    await asyncio.to_thread(str)  # Others run meanwhile.
    logging.warning("goodbye from %s", name)
