# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Draw what a command printed as a terminal window: `terminal_picture.py TITLE < printed.txt > picture.svg`.

Needs rich, which the development requirements bring along.
"""

from __future__ import annotations

import io
import re
import sys

from rich.console import Console
from rich.text import Text

# What a terminal would colour, as Ansible's own output and our tables mean it.
STYLES = (
    (r"^\$ .*", "bold white"),
    (r"^(PLAY|TASK) .*", "bold"),
    (r"^changed: .*", "yellow"),
    (r"\bbetter\b|kept as .*", "bold green"),
    (r"\[?SIMULATED\]?:?", "magenta"),
    (r"\d+(\.\d+)? tok/s", "cyan"),
    (r"^host +factor.*|^ +tok/s +tok/s.*|^-[- ]+$", "dim"),
)


def main() -> int:
    """Read standard input, write an SVG to standard output."""
    console = Console(record=True, width=88, file=io.StringIO())
    for line in sys.stdin.read().splitlines():
        text = Text(line)
        for pattern, style in STYLES:
            text.highlight_regex(re.compile(pattern), style)
        console.print(text, no_wrap=True, overflow="crop")
    picture = console.export_svg(title=sys.argv[1])
    sys.stdout.write(re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL).replace("Fira Code", "monospace"))  # no web fonts
    return 0


if __name__ == "__main__":
    sys.exit(main())
