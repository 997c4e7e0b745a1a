"""An app whose logging Django configures, by a LOGGING as its documentation has it, with a file beside the console."""

import logging
import os

from django.conf import settings
from django.utils.log import configure_logging

import outlive

settings.configure()
configure_logging(
    "logging.config.dictConfig",
    {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"verbose": {"format": "{levelname} {asctime} {message}", "style": "{"}},
        "filters": {"no_tea": {"()": "django.utils.log.CallbackFilter", "callback": lambda one: one.msg != "tea"}},
        "handlers": {
            "console": {"class": "logging.StreamHandler", "formatter": "verbose", "filters": ["no_tea"]},
            "file": {"class": "logging.FileHandler", "filename": os.environ["SITE_LOG"]},
        },
        "root": {"handlers": ["console", "file"], "level": "INFO"},
        "loggers": {"audit": {"handlers": ["console"], "propagate": False}},
    },
)
app = outlive.App()


@app.task
def talk(order: int) -> None:
    log = logging.getLogger("shop")
    log.debug("not for the log")
    log.info("sold", extra={"order": order})
    log.info("tea")
    logging.getLogger("audit").warning("paid")
    logging.getLogger("django.request").error("Not Found")
    try:
        raise ValueError("no price")
    except ValueError:
        logging.exception("order %d", order)
