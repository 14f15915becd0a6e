"""Any program as a durable step: the part behind `oncemore exec`.

    command.py       the options of one execution, and the HMAC of its command line
    find_command.py  looks up the command before an attempt is counted
    exit_rules.py    the meaning of exit codes: done, retry, failed, unknown
    exit_code.py     the outcome of an execution and its exit code
    guardian.py      the process between the worker and the program: ends it with all its descendants
    output_match.py  the process that searches the output for expressions: it can be stopped, `re` cannot
    output_spool.py  output on its way to an artifact: bounded, beginning and end kept
    process.py       one attempt: start, pass output through, end
    signals.py       SIGINT and SIGTERM while a program runs
    step.py          attempts as a step: the same flow, log and keys as any other
    store_secret.py  the secret of the store under which command lines are hashed

Three processes take part in an attempt. The worker holds the lease, reads the output and writes the log. The
guardian is the parent of the program, and adopts every process that the program leaves behind; it keeps the
time limit also while the worker waits for a slow reader, and it notices at once when the worker is gone. The
program has a session and a process group of its own.
"""
