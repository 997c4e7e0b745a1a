"""An app with schedules, which workers import."""

import outlive

app = outlive.App()


@app.schedule(every="1s")
@app.task(recycle_after=1000, max_losses=None, max_crashes=1000)
def tick() -> None:
    pass
