"""An app that a test writes while it runs: its tasks are in the file that TESTED_APP names."""

import os
from pathlib import Path

import outlive

app = outlive.App()
exec(Path(os.environ["TESTED_APP"]).read_text())
