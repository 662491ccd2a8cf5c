"""What happens by itself. Each loop's `run_once` is the unit; `runner` owns while, interval and stop."""
