"""Told to stop, the tests end what they started, as after Ctrl-C."""

import signal

for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.default_int_handler)
