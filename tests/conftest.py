"""Signals as a person's terminal leaves them: a test run in the background inherits ignored ones and passes them on."""

import signal

for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
