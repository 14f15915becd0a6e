"""Any program as a durable step: what `oncemore exec` runs.

    rules.py    what an exit code means: done, try again, failed, nobody knows
    found.py    where a command is, asked before anything is counted
    guard.py    the process between us and the program: ends it with all that it started
    matcher.py  the process that looks for expressions in the output: can be stopped, as `re` cannot
    spool.py    output on its way to become an artifact: bounded, beginning and end kept
    watched.py  one attempt: started, passed through, kept, ended
    durable.py  attempts as a step: the same flow, log and keys as any other

Three processes take part in an attempt. We hold the lease, read the output and write the log. The guard is
the program's parent, and parent by adoption of everything that the program leaves behind; it keeps the time
limit also while we wait for a slow reader, and it sees at once when we are gone. The program has a session
and a group of its own.
"""
