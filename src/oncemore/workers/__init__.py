"""Workers, `map`, and executors in other processes."""
