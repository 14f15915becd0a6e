"""The KFM loop."""
