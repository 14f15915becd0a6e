"""`oncemore migrate`: rewrite code that uses tenacity, backoff or stamina to `oncemore.retry`.

A call is rewritten only if the result makes the same calls with the same planned delays. Any other
change is reported as a difference of that place, and a call that cannot be expressed is left as it is, with
the reason. The source is parsed with libcst and never executed.

    options.py      `RetryCall`: the arguments of the new call, and `CannotMigrate`, the reason against it
    waits.py        planned delays of the other libraries as `wait=` and `jitter=`
    conditions.py   their conditions as `on=` and `until=`
    expressions.py  reading numbers, functions and arguments from the syntax tree
    from_*.py       one module per library: its call in, a `RetryCall` out
    module.py       one module: find the calls, rewrite them, mend the imports
    files.py        files and folders: the report, the difference as text, the replacement
"""
