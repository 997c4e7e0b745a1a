"""Procrastinate. It is executed by path."""

import procrastinate
import shared

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=shared.POSTGRES))


@app.task(name="noop")
async def noop(url, number):
    shared.begin(number)


@app.task(name="waiting")
async def waiting(url, number):
    await shared.wait()


class Queue:
    async def install(self):
        await app.open_async()
        await app.schema_manager.apply_schema_async()

    async def one(self, number):
        await noop.defer_async(url=shared.URL, number=number)

    async def bulk(self, numbers):
        await noop.batch_defer_async(*({"url": shared.URL, "number": number} for number in numbers))

    async def waiting(self, numbers):
        await waiting.batch_defer_async(*({"url": shared.URL, "number": number} for number in numbers))

    async def left(self):
        query = "select exists (select from procrastinate_jobs where status in ('todo', 'doing')) as some"
        return (await app.connector.execute_query_one_async(query))["some"]
