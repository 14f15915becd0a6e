"""An agent on a bus of three servers, one of which is killed."""
