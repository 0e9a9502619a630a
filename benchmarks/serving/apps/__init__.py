"""The servers under test."""
