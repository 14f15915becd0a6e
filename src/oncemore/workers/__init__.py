"""Workers, `work.map`, and executors in other processes; may import `steps`, `control` and lower layers."""
