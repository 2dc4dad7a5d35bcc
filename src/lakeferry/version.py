"""The version of Lakeferry, which it writes into commits and prints."""

LAKEFERRY_VERSION = "0.2.0"
