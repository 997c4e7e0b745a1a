"""A process that uses an embedded server: for each line on stdin it calls ensure and prints the result.

It is run by its path, and ends when its stdin is closed or it is killed.
"""

import json
import sys
import time
from pathlib import Path

from outlive import embedded
from outlive.errors import EmbeddedError


def main() -> None:
    for line in sys.stdin:
        words = json.loads(line)
        start = time.monotonic()
        try:
            binaries = Path(words["binaries"]) if words["binaries"] else None
            url = embedded.ensure(words["directory"], settings=words["settings"], binaries=binaries)
            answer = {"url": url}
        except EmbeddedError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer | {"took_s": time.monotonic() - start}), flush=True)


if __name__ == "__main__":
    main()
