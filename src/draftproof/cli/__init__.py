"""The command line: one file a command, each parses, calls a public function and prints."""
