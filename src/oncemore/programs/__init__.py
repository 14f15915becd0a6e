"""Runs any program as a durable step: the part behind `oncemore exec`.

    command.py        the options of one call, and the HMAC of its command line
    store_secret.py   the secret of the store, which keys that HMAC
    find_command.py   finds the executable before an attempt is counted
    exit_rules.py     the meaning of exit codes (done, retry, failed, unknown), and the failures of a program
    step.py           the program as a step: the same flow, log and keys as a function
    process.py        one attempt: starts the guardian, collects the output, waits for the end
    output.py         the output on its way to the caller, the spool on disk and the matcher
    signals.py        SIGINT, SIGTERM and SIGHUP while a program runs
    outcome.py        the outcome of a call, its exit code and its message
    guardian.py       run as a process: the parent of the program, ends it with all its descendants
    output_match.py   run as a process: searches the output for expressions

Three processes take part in an attempt. The worker holds the lease, reads the output and writes the log. The
guardian is the parent of the program and adopts every process that the program leaves behind; it enforces
the time limit even while the worker is blocked by a slow reader, and it notices at once when the worker dies.
The program has a session and a process group of its own.

The folder may import `steps` and everything below it; only `cli` imports the folder.
"""
