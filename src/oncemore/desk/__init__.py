"""Where people look and act."""
