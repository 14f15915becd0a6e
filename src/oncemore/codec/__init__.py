"""Values as bytes: what goes into keys and records, and what comes out again."""
