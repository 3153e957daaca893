"""`python -m examples.shop`: exit code 0 if everything adds up, 1 if not, 130 after Ctrl-C."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from examples.shop.run import Demo, told
from millstream.errors import MillstreamError


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.shop", description="The whole promise in one command.")
    parser.add_argument("--events", type=int, default=200_000, help="how many orders are sent (200000)")
    parser.add_argument("--seed", type=int, default=7, help="other orders (7)")
    parser.add_argument("--dir", type=Path, default=Path("millstream-demo"), help="where everything is kept")
    parser.add_argument("--quiet", action="store_true", help="no live view")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        summary = Demo(given.dir, given.events, given.seed, given.quiet).run()
    except KeyboardInterrupt:
        print(f"stopped; the same command goes on with the run in {given.dir}")
        return 130
    except MillstreamError as error:
        print(f"millstream demo: {error}", file=sys.stderr)
        return 1
    print("\n".join(told(summary, given.dir)))
    return 1 if summary.problems else 0


if __name__ == "__main__":
    sys.exit(main())
