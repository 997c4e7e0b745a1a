"""The app that compose.yaml runs. Replace it with your own."""

import outlive

app = outlive.App()


@app.task(max_attempts=5, timeout="10m")
def fetch(url: str) -> dict[str, int]:
    """Stand for real work."""
    return {"bytes": len(url)}
