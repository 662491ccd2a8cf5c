"""Membership of a job: the meeting of its ranks, and the messages between a rank and its agent."""
