"""An app for machines of different kinds."""

import outlive

app = outlive.App()


@app.task
def add(a: int, b: int) -> int:
    return a + b


@app.task(needs="gpu")
def draw(n: int) -> str:
    return f"picture {n}"


@app.task(needs=["gpu", "eu"])
def draw_face(n: int) -> str:
    return f"face {n}"
