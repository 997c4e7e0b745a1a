"""An app that logs with structlog by way of `logging`, as its documentation has it, and with a handler of Rich."""

import logging

import structlog
from rich.logging import RichHandler

import outlive

shared: list[structlog.typing.Processor] = [structlog.stdlib.add_log_level, structlog.processors.TimeStamper(fmt="iso")]
shared += [structlog.processors.format_exc_info]
structlog.configure(
    processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
    logger_factory=structlog.stdlib.LoggerFactory(),
    wrapper_class=structlog.stdlib.BoundLogger,
)
handler = logging.StreamHandler()
handler.setFormatter(structlog.stdlib.ProcessorFormatter(processors=[structlog.processors.JSONRenderer()]))
logging.basicConfig(handlers=[handler], level="INFO")
rich = logging.getLogger("rich")
rich.propagate = False
rich.addHandler(RichHandler())
app = outlive.App()


@app.task
def talk(order: int) -> None:
    log = structlog.get_logger("shop")
    log.info("sold 100 %", order=order)
    rich.warning("paid")
    try:
        raise ValueError("no price")
    except ValueError:
        log.exception("failed", order=order)
