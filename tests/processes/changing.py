"""The source of an app that changes while its worker runs. The fixture `changing` imports the first version."""

SOURCE = """
import pathlib, time
import outlive
app = outlive.App()

@app.task(recycle_after=100)
def version() -> int:
    return {version}

@app.task(recycle_after=100)
def wait(path: str) -> int:
    pathlib.Path(path + ".started").touch()
    while not pathlib.Path(path).exists():
        time.sleep(0.01)
    return version.function()
"""


def source(version: int) -> str:
    return SOURCE.format(version=version)
