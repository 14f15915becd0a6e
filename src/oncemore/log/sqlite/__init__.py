"""The log in a SQLite file. It imports `apsw` and the log's own modules, nothing of the features above."""
