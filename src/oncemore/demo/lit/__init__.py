"""A review platform whose core fails."""
