"""Run a command while two other processes keep two processors busy: `python -m tests.support.busy COMMAND …`.

The processes end with the command, and on their own after an hour.
"""

from __future__ import annotations

import subprocess
import sys

PROCESSES = 2
LONGEST_S = 3600
SPIN = f"import time\nend = time.monotonic() + {LONGEST_S}\nwhile time.monotonic() < end: pass"


def main(command: list[str]) -> int:
    """Run the command and return its exit code."""
    spinners = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(PROCESSES)]
    try:
        return subprocess.run(command, check=False).returncode
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
