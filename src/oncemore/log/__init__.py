"""Where entries and heads live: one protocol, one file for each kind of store."""
