"""The command ``drolayers``, or one sentence where its extra is not installed."""

from __future__ import annotations

import sys

from drolayers.errors import MissingExtraError


def main() -> None:
    """Run the command line."""
    try:
        from drolayers.cli import app
    except MissingExtraError as error:
        print(f"drolayers: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    app(prog_name="drolayers")


if __name__ == "__main__":
    main()
