"""Start a program with an SQLite that DBOS can use, where the system's is older than 3.42.

python examples/compare/start.py examples/compare/flaky_get/with_dbos.py
"""

import runpy
import sqlite3
import sys

if sqlite3.sqlite_version_info < (3, 42):
    import pysqlite3

    sys.modules["sqlite3"] = pysqlite3

if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
