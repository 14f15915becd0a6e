"""Try it once more. Apply it once."""
