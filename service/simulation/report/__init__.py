"""Report of a replay: files, charts and sentences."""
