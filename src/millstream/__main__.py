"""`millstream …` and `python -m millstream …`: the start of the command line."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line. Ctrl-C while its modules are imported ends it without a traceback too."""
    try:
        from millstream.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        return 130  # `Exit.INTERRUPTED`, which may not be imported yet


if __name__ == "__main__":
    sys.exit(main())
