"""A pipeline that is killed in the middle and finishes."""
