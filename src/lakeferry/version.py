"""The version of Lakeferry, which it writes into commits and prints."""

LAKEFERRY_VERSION = "0.1.0"
