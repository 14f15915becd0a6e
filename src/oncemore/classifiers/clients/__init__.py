"""One table of exceptions per client library."""
