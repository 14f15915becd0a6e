"""Files that steps leave, stored by digest."""
