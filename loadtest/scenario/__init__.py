"""Scenario files: YAML read, checked whole, and turned into frozen values."""
