"""Pure domain rules: functions of their arguments alone, without I/O, clock or randomness."""
