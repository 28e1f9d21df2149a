"""What each `bitring` command does; toolkit.cli parses and dispatches."""
