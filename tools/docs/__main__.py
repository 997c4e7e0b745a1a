"""./run docs: build the site into site/; --generate writes the generated pages, and --pictures the pictures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tools.docs import checking
from tools.docs.generating import ROOT, pages


def main(words: list[str]) -> int:
    match words:
        case ["--generate"]:
            return generate()
        case ["--pictures"]:
            from tools.docs import pictures  # It needs a browser.

            return pictures.main()
        case []:
            return build()
    print("usage: ./run docs [--generate | --pictures]", file=sys.stderr)
    return 2


def generate() -> int:
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


def build() -> int:
    """Build, and refuse warnings, dead links, pages that are out of date, and what a browser would fetch elsewhere."""
    old = [path.relative_to(ROOT) for path, text in pages().items() if path.read_text(encoding="utf-8") != text]
    if old:
        print(f"out of date: {', '.join(map(str, old))}; run ./run docs --generate", file=sys.stderr)
        return 1
    ran = mkdocs(ROOT / "mkdocs.yml")
    if ran.returncode:
        print(ran.stderr, file=sys.stderr)
        return ran.returncode
    if faults := list(checking.complaints(ROOT / "site")):
        print("\n".join(faults), file=sys.stderr)
        return 1
    print("the site is in site/: open site/index.html (its search needs `python3 -m http.server --directory site`)")
    return 0


def mkdocs(config: Path) -> subprocess.CompletedProcess[str]:
    """Build a site. Not with --quiet: warnings that are not printed don't count for --strict."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(config)]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=ROOT, env=environ, check=False, capture_output=True, text=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
