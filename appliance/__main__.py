"""`python -m appliance`, and the script `appliance`."""

import sys


def start() -> None:
    """Run the command line as this process. What takes time is imported once signals can end it without a traceback."""
    try:
        from appliance.cli import signals
        signals.at_once()
        from appliance.cli.main import main
        code = main()
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    start()
