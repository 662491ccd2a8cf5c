"""Rules for jobs that compete for slots: minimums before surplus, minimum run time, evidence, rate of change."""
