"""`python -m appliance`, and the script `appliance`."""

import sys

STACK = 8 << 20  # bytes that each thread gets
LEAST_STACK = 1 << 20


def _stack() -> None:
    """Give the main thread a usual stack, and each other thread too, whatever the limit was. With
    too little of it the interpreter ends without a word, deep in some library: so nothing else is
    imported before this."""
    try:
        import resource
    except ImportError:  # elsewhere than on Unix
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    most = STACK if hard == resource.RLIM_INFINITY else min(STACK, hard)
    if most < LEAST_STACK:
        sys.stderr.write(f"error[stack]: a stack of {most >> 10} KiB is allowed; needed is {LEAST_STACK >> 10} KiB\n"
                         "  hint: allow the process more (ulimit -s 8192, LimitSTACK in systemd, `--ulimit stack` of a "
                         "container, RLIMIT_STACK)\n")
        sys.exit(2)
    if soft != most:
        resource.setrlimit(resource.RLIMIT_STACK, (most, hard))
    import threading
    threading.stack_size(STACK)


def start() -> None:
    """Run the command line as this process. Slow modules are imported once signals can end them
    without a traceback."""
    try:
        _stack()
        from appliance import isolated
        isolated.again(sys.argv[1:])
        from appliance.cli import signals
        signals.at_once()
        from appliance.cli.main import main
        code = main()
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    start()
