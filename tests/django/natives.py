"""Tasks of `outlive.django.app()`, as a project has them beside those of Django, and of an app that is not Django's."""

from __future__ import annotations

import outlive
import outlive.django

app = outlive.django.app()
stray = outlive.App()


@app.task
def double(number: int) -> int:
    return number * 2


@stray.task
def lost() -> None: ...
